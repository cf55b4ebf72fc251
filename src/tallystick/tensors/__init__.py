"""Tensors, their bytes, their digests and the files they are kept in."""
