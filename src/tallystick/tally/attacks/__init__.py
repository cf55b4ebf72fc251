"""Forgeries of a training run, as data and functions, and what each audit says to them."""
