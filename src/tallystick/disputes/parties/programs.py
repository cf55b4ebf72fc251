"""Which roles make up the program of each party, and several parties in one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tallystick.core.errors import UnavailableError
from tallystick.disputes.game.moves import Evidence
from tallystick.disputes.game.protocols import DisputeView, Doubter, Judge, Trace
from tallystick.disputes.game.state import PostedClaim
from tallystick.disputes.parties.auditing import Auditor, InlineAuditor
from tallystick.disputes.parties.game_view import BoardCache, GameView
from tallystick.disputes.parties.player import DueMoves, PartyRole, PartyTask, Player, Workspace
from tallystick.disputes.parties.prover import ClaimOffer, PostingRole
from tallystick.disputes.parties.roles import (
    Answer,
    Answering,
    Challenger,
    CommitteeMember,
    Naming,
    Pleading,
    Prover,
    Referee,
    appeals,
    no_evidence,
    waits_never,
)
from tallystick.verdicts.verdict import Fault

# Which answers make up the program of each party, by the tasks of `game_view.PHASES`.


def prover(
    cache: BoardCache,
    workspace: Workspace,
    traces: Callable[[PostedClaim], Trace | None],
    offer: ClaimOffer | None = None,
    conceding: Judge | None = None,
) -> tuple[PartyRole, ...]:
    """The prover's roles: post the offer, answer, appeal; it concedes only if `conceding` finds it at fault."""
    answers: dict[str, Answer] = {
        "answer": Prover(cache, traces, concedes=conceding is not None).answers,
        "appeal": appeals,
    }
    if conceding is not None:
        answers["plea"] = Pleading(Fault.PROVER, cache, workspace, conceding).pleas
    posting: tuple[PartyRole, ...] = (PostingRole(offer, cache),) if offer else ()
    return (*posting, Answering(answers), DueMoves())


def watchtower(
    cache: BoardCache, traces: Callable[[PostedClaim], Trace | None], at_once: bool = False
) -> tuple[PartyRole, ...]:
    """The role of a prover's delegate: answer, once the prover has left half of its time unused, or at once."""
    return (Answering({"answer": Prover(cache, traces, leaves_time=not at_once).answers}),)


def challenger(
    cache: BoardCache,
    workspace: Workspace,
    doubters: Callable[[PostedClaim], Doubter] | Auditor,
    judge: Judge | None = None,
    evidence: Callable[[DisputeView], Evidence | None] = no_evidence,
    claims: Collection[int] | None = None,
    naming: Callable[[DisputeView], tuple[int, int] | None] | None = None,
) -> tuple[PartyRole, ...]:
    """The challenger's roles: recompute claims (all, or `claims`), contest, choose, name an element, prove, appeal.

    Doubters compute in this process, which makes no move meanwhile. An `AuditProcess` computes in another one.
    """
    auditor = InlineAuditor(doubters) if callable(doubters) else doubters
    own = Challenger(cache, workspace, auditor, claims)
    answers: dict[str, Answer] = {"choice": own.choices, "appeal": appeals}
    if naming is not None:
        answers["name"] = Naming(cache, workspace, naming).names
    if judge is not None:
        answers["plea"] = Pleading(Fault.CHALLENGER, cache, workspace, judge, evidence).pleas
    return (Answering(answers, own.contests), DueMoves())


def member(cache: BoardCache, workspace: Workspace, judge: Judge) -> tuple[PartyRole, ...]:
    """A member's roles: enlist, vote, disclose, and make the moves that are due in its disputes."""
    own = CommitteeMember(cache, workspace, judge)
    return (Answering({"vote": own.votes, "disclose": own.disclosures}, own.enlistment), DueMoves())


def referee(
    cache: BoardCache, judge: Judge, waits: Callable[[DisputeView], bool] = waits_never
) -> tuple[PartyRole, ...]:
    """The referee's roles: rule or convene; if it `waits`, the challenger has half the window to name an element."""
    return (Answering({"rule": Referee(cache, judge, waits).rulings}), DueMoves())


def only_dispute(roles: Sequence[PartyRole], number: int) -> tuple[PartyRole, ...]:
    """The same roles, restricted to one dispute."""

    def tasks(view: GameView) -> Iterator[PartyTask]:
        name = view.name_of(number)
        yield from (task for role in roles for task in role.tasks(view) if name in task.key)

    return (Answering({}, tasks),)


# Several parties in one process, with a clock that moves only when all of them wait.
#
# For tests and demonstrations; `play_out` drives players at any coordinator whose clock can be set.

STEPS_MAX = 1_000_000


@dataclass
class Clock:
    """A clock that is set by hand, in seconds."""

    now: int = 1_000_000

    def __call__(self) -> int:
        """The time in seconds."""
        return self.now

    def advance(self, second: int) -> None:
        """Set the time to `second`, unless it is later already."""
        self.now = max(self.now, second)


def play_out(
    players: Sequence[Player], advance: Callable[[int], None], is_over: Callable[[], bool] = lambda: False
) -> None:
    """Let every player move in turn until none of them will move again, or until `is_over`.

    When all of them wait, `advance` sets the clock to the next second at which one of them may have something to do.
    Raises `UnavailableError` if that does not end within `STEPS_MAX` rounds.
    """
    for _ in range(STEPS_MAX):
        if is_over():
            return
        moved = [player.step() for player in players]
        if any(moved):
            continue
        wakes = [second for player in players if (second := player.wakes()) is not None]
        if not wakes:
            return
        advance(min(wakes))
    raise UnavailableError(f"the players were still at it after {STEPS_MAX} rounds")
