"""Operators of this project's own: random draws whose seed is an operand."""
