"""The engine called V1."""
