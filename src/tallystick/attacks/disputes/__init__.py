"""Provers that cheat in a dispute and defend it, each with how the dispute has to end; and their honest twins."""

from tallystick.attacks.disputes.catalogue import DECEPTIONS
from tallystick.attacks.disputes.deception import Deception, Staged
from tallystick.attacks.disputes.scene import Scene

__all__ = ["DECEPTIONS", "Deception", "Scene", "Staged"]
