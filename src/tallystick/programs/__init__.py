"""Tensor programs as data: operators with one meaning each, and graphs of them."""
