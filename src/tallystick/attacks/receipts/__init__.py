"""Receipts that do not say what happened, and what a customer's checks say to them."""

from tallystick.attacks.receipts.catalogue import FORGERIES, Played, forgery_named, judge, play, play_twin
from tallystick.attacks.receipts.forgery import Forgery
from tallystick.attacks.receipts.scene import Answered, Presented, Scene, Wishes, make_scene

__all__ = [
    "FORGERIES",
    "Answered",
    "Forgery",
    "Played",
    "Presented",
    "Scene",
    "Wishes",
    "forgery_named",
    "judge",
    "make_scene",
    "play",
    "play_twin",
]
