"""What zinf would do with a zoo of models, and whether it has become worse: figures and schedules, nothing is run.

models.py says what is in the zoo, described.py what zinf would do with it, base.py what it did when the base was
written, gate.py compares the two; `python -m bench.zoo` does all of it (docs/zoo.md).
"""
