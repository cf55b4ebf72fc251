"""Bytes, digests, tensors, files and errors: what everything else stands on."""
