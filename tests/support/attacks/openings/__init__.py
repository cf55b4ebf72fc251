"""Forgeries of opened operators, as data and functions, and what each way of judging says to them."""
