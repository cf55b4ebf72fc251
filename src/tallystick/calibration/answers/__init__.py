"""Limits of receipts: how far honest rows of language models lie apart."""
