"""Operators: each is defined once, and the definition is read as types, batches, values or error bounds."""
