"""Specs, environments, records, their order, and the claim over them."""
