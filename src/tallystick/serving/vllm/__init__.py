"""EXPERIMENTAL: sampler evidence and hidden rows from vLLM, written against its documented interfaces.

It was tested against a stub of those interfaces and never on vLLM itself. See `docs/serving.md`.
"""
