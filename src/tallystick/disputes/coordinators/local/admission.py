"""The checks on a move before the rules of the game, and the HTTP status of each refusal."""

from __future__ import annotations

from typing import Final

from tallystick.commitments.digests import Digest
from tallystick.disputes.coordinators.local.signed import Charter, SignedMove, read_signed_move
from tallystick.disputes.game.moves import Descend, Move, Partition, Post, Reveal, read_move
from tallystick.errors import RuleError

WRONG: Final = frozenset(
    {"cuts", "child", "range", "value", "proof", "evidence", "commitment", "seal", "level", "data"}
)
"""Codes of moves with wrong content; the other codes mean a wrong time or phase."""
FORBIDDEN: Final = frozenset({"actor", "self", "standing"})


def admit(data: bytes, charter: Charter) -> tuple[SignedMove, Move]:
    """A party's bytes as a signed move for this coordinator.

    Raises:
        MalformedError: too many bytes, or no signed move in canonical form.
        ProofError: the signature is not one of its key.
        RuleError: with code `coordinator`, it was signed for another coordinator; with code `actor`, it was signed by
            another party than its actor or a delegate of the actor.
    """
    signed = read_signed_move(data)
    move = read_move(signed.move.encode())
    signed.check()
    if signed.coordinator != charter.identity:
        raise RuleError("coordinator", "the move was signed for another coordinator")
    signed.check_actor(move)
    return signed, move


def data_of(move: Move) -> Digest | None:
    """The manifest that the board needs, with everything it lists, before the move is accepted; `None` for none."""
    if isinstance(move, Post):
        return move.statement
    return move.data if isinstance(move, Partition | Descend | Reveal) else None


def status_of(code: str) -> int:
    """The HTTP status of a refusal with the code of a rule."""
    if code in FORBIDDEN:
        return 403
    if code == "quota":
        return 413
    return 422 if code in WRONG else 409
