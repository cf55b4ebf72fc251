"""Judging: opened operators and the leaf of a dispute against bounds and thresholds."""
