"""Carries schedules out: ops come in, transfers go to lanes and compute to the calling thread.

Read `interface`, then `executor`; `host`, `nvme` and `virtual` are the parts.
"""
