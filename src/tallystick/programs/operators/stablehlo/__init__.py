"""The operators of StableHLO."""
