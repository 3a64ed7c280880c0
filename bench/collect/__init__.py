"""The benchmarks for people, one after the other, and what they found as part of a page: a table and pictures.

runs.py runs them and keeps their lines, table.py makes rows of these, pictures.py draws, page.py writes all of it into
docs/benchmarks.md; `python -m bench.collect` does it in this order.
"""
