"""Forgeries of a training run, as data and functions, and what each audit says to them."""

from tallystick.attacks.attack import AUDITS, Attack, Audit, Expected
from tallystick.attacks.catalogue import ATTACKS, find_attack

__all__ = ["ATTACKS", "AUDITS", "Attack", "Audit", "Expected", "find_attack"]
