"""Disputes: from a disagreement to one operator, with bonds, clocks and a ruling."""
