"""Forgers of the attacks that the package lists and does not hold; they run from a clone."""
