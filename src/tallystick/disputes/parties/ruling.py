"""A judge's finding over any files at the board: inconsistent files are the prover's fault."""

from __future__ import annotations

from tallystick.disputes.game.protocols import Judge
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.task import FAILURES
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.judging.fault import Fault


def find(
    view: GameView, number: int, cache: BoardCache, judge: Judge, is_last_try: bool, nonce: str | None = None
) -> tuple[Fault | None, str]:
    """Who is at fault and why; `None` for undecided.

    Malformed or inconsistent files are the prover's fault, because the prover supplied all of them. Any other failure
    is raised, so that the caller tries again. In the last try, files that are missing from an answering board count as
    withheld by the prover, and any other failure leaves the dispute undecided.
    """
    try:
        return judge.rule(cache.answered(view, number), nonce)
    except (MalformedError, ProofError) as error:
        return Fault.PROVER, str(error)
    except FAILURES as error:
        if not is_last_try:
            raise
        is_withheld = isinstance(error, UnavailableError) and cache.lacks(view, number)
        return (Fault.PROVER if is_withheld else None), str(error)
