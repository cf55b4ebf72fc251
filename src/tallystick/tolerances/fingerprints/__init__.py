"""Fingerprints: lossy summaries of hidden states, compared by distance."""
