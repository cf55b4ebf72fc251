"""Formats: specs, environments, records and their order, claims, receipts and openings."""
