"""A simulator of everybody at once: one seed, one clock, and every law of the game checked after every move."""

from tallystick.disputes.simulator.places import Broken
from tallystick.disputes.simulator.simulation import Report, simulate
from tallystick.disputes.simulator.world import World

__all__ = ["Broken", "Report", "World", "simulate"]
