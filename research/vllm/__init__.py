"""Answers of a real vLLM server under load, and what a verifier says about them."""
