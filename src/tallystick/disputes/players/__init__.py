"""The programs of the parties: each watches a coordinator and makes its party's moves, through any crash."""

from tallystick.disputes.players.apart import Apart
from tallystick.disputes.players.appealing import Appellant
from tallystick.disputes.players.auditing import Inline
from tallystick.disputes.players.challenger import Challenger
from tallystick.disputes.players.keeper import Keeper
from tallystick.disputes.players.member import Member
from tallystick.disputes.players.player import Player
from tallystick.disputes.players.pleading import Pleader
from tallystick.disputes.players.prover import Offer, Poster, Prover
from tallystick.disputes.players.referee import Referee
from tallystick.disputes.players.shelf import Shelf
from tallystick.disputes.players.table import Clock, MemoryBoard, Table, play_out
from tallystick.disputes.players.watch import View, Watch
from tallystick.disputes.players.workspace import Workspace

__all__ = [
    "Apart",
    "Appellant",
    "Challenger",
    "Clock",
    "Inline",
    "Keeper",
    "Member",
    "MemoryBoard",
    "Offer",
    "Player",
    "Pleader",
    "Poster",
    "Prover",
    "Referee",
    "Shelf",
    "Table",
    "View",
    "Watch",
    "Workspace",
    "play_out",
]
