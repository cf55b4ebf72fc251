"""Tolerances: what is recorded about a tensor or a state, and when a replay agrees with it."""
