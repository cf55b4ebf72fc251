"""What a local coordinator asks of a move before the rules of the game are asked."""

from __future__ import annotations

from typing import Final

from tallystick.commitments.digests import Digest
from tallystick.disputes.coordinators.local.signed import Charter, SignedMove, read_signed_move
from tallystick.disputes.game.moves import Descend, Move, Partition, Post, Reveal, read_move
from tallystick.errors import RuleError

DOOR_CODES: Final = frozenset({"coordinator", "funds", "data", "standing", "quota"})
"""The codes by which a local coordinator refuses besides those of the game."""


def admit(data: bytes, charter: Charter) -> tuple[SignedMove, Move]:
    """A party's bytes as a signed move for this coordinator.

    Raises:
        MalformedError: too many bytes, or no signed move in canonical form.
        ProofError: the signature is not one of its key.
        RuleError: with code `coordinator`, signed for another coordinator; with code `actor`, signed by another
            party than the one that moves.
    """
    signed = read_signed_move(data)
    move = read_move(signed.move.encode())
    signed.check()
    if signed.coordinator != charter.identity:
        raise RuleError("coordinator", "the move was signed for another coordinator")
    if move.actor != signed.key:
        raise RuleError("actor", "the move was signed by another key than its actor's")
    return signed, move


def data_of(move: Move) -> Digest | None:
    """The manifest that has to lie at the board, with all that it lists, before the move is accepted."""
    if isinstance(move, Post):
        return move.statement
    return move.data if isinstance(move, Partition | Descend | Reveal) else None
