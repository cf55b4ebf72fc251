"""Limits of training: honest stacks beside one another, and how small a cheat still shows."""
