"""Provers that cheat and defend the result in a dispute."""
