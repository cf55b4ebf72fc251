"""Who keeps the order of moves, the time and the money: a database, or a contract."""

from tallystick.disputes.coordinators.coordinator import Board, Coordinator, Entry, replayed

__all__ = ["Board", "Coordinator", "Entry", "replayed"]
