"""Audits of one answer of a language model, and of all answers of one provider, from their receipts."""
