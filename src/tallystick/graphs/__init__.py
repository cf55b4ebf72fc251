"""Tensor programs as data: read, checked, sliced, inspected, bound and executed."""
