"""Decoding as graphs in a framework that is not PyTorch."""
