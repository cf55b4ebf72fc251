"""Receipts that do not say what happened, and what a customer's checks say to them."""
