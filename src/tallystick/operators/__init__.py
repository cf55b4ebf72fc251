"""Operators: each one defined once, and read as types, batches, values or error bounds."""
