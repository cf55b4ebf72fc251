"""Signatures: who made a statement."""
