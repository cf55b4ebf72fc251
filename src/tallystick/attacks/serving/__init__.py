"""Ways to serve a language model that is not the promised one, or not as promised, and honest ways beside them."""

from tallystick.attacks.serving.catalogue import CHEATS, HONEST, Cheat, cheat_named
from tallystick.attacks.serving.scene import Scene, Served

__all__ = ["CHEATS", "HONEST", "Cheat", "Scene", "Served", "cheat_named"]
