"""A simulator of everybody at once: one seed, one clock, and every law of the game checked after every move."""

from tallystick.disputes.simulator.simulation import Report, simulate
from tallystick.disputes.simulator.witness import BrokenError
from tallystick.disputes.simulator.world import World

__all__ = ["BrokenError", "Report", "World", "simulate"]
