"""EXPERIMENTAL: sampler evidence and hidden rows from vLLM, written against its documented interfaces.

It has been tested against a stub of those interfaces, and has not run on vLLM. See `docs/serving.md`.
"""
