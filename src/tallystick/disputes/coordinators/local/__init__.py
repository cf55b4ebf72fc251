"""A coordinator kept in a database: in process, or behind HTTP for parties elsewhere."""

from tallystick.disputes.coordinators.local.board import Quotas
from tallystick.disputes.coordinators.local.place import Connection, LocalBoard, LocalCoordinator
from tallystick.disputes.coordinators.local.signed import Accepted, Charter, MoveReceipt, SignedMove, sign_move

__all__ = [
    "Accepted",
    "Charter",
    "Connection",
    "LocalBoard",
    "LocalCoordinator",
    "MoveReceipt",
    "Quotas",
    "SignedMove",
    "sign_move",
]
