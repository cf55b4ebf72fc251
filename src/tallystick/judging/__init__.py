"""Judges opened operators, and the leaf of a dispute, by bounds and thresholds."""
