"""What a judge's finding is, whatever lies at the board: the prover answers for its files hanging together."""

from __future__ import annotations

from tallystick.disputes.game.protocols import Judge
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.disputes.parties.task import FAILURES
from tallystick.disputes.parties.watch import GameView
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.judging.fault import Fault


def find(
    view: GameView, number: int, shelf: BoardCache, judge: Judge, is_last_call: bool, nonce: str | None = None
) -> tuple[Fault | None, str]:
    """Who is at fault and why, `None` for undecided.

    Files that are malformed or contradict each other are the prover's fault, as all of them are the prover's. A
    failure of any other kind is raised, to be tried again, until the last call: then what is missing from a board that
    answers was withheld by the prover, and what else went wrong leaves it undecided.
    """
    try:
        return judge.rule(shelf.answered(view, number), nonce)
    except (MalformedError, ProofError) as error:
        return Fault.PROVER, str(error)
    except FAILURES as error:
        if not is_last_call:
            raise
        is_withheld = isinstance(error, UnavailableError) and shelf.lacks(view, number)
        return (Fault.PROVER if is_withheld else None), str(error)
