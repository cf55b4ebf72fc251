"""Receipts from vLLM: canonical sampling, rows of hidden states, and what runs. See `docs/serving.md`."""
