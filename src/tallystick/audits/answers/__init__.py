"""Judges receipts of language models' answers: what they state, one pass over their tokens, and higher rungs."""
