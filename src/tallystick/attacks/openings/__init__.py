"""Forgeries of opened operators, as data and functions, and what each way of judging says to them."""

from tallystick.attacks.openings.attack import JUDGES, Judge, OpeningAttack
from tallystick.attacks.openings.catalogue import OPENING_ATTACKS

__all__ = ["JUDGES", "OPENING_ATTACKS", "Judge", "OpeningAttack"]
