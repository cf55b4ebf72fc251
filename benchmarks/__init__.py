"""Benchmarks: what recording and auditing cost, as ratios taken in one process. Run `python -m benchmarks`."""
