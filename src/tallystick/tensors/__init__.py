"""Tensors, their bytes, their digests and their files."""
