"""Disputes: from a disagreement to one operator, with bonds, clocks and a ruling."""

from tallystick.disputes.fault import Fault
from tallystick.disputes.game import Option, apply, next_moves
from tallystick.disputes.moves import Move, read_move
from tallystick.disputes.rules import Rules
from tallystick.disputes.state import State

__all__ = ["Fault", "Move", "Option", "Rules", "State", "apply", "next_moves", "read_move"]
