"""Which roles make up the program of each party."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tallystick.disputes.game.moves import Evidence
from tallystick.disputes.game.protocols import DisputeView, Doubter, Judge, Trace
from tallystick.disputes.game.state import PostedClaim
from tallystick.disputes.parties.appealing import Appellant
from tallystick.disputes.parties.auditing import Auditor, Inline
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.disputes.parties.challenger import Challenger
from tallystick.disputes.parties.due_moves import DueMoves
from tallystick.disputes.parties.evidence_role import EvidenceRole, no_evidence
from tallystick.disputes.parties.member import CommitteeMember
from tallystick.disputes.parties.pinpoint_role import PinpointRole
from tallystick.disputes.parties.prover import ClaimOffer, Poster, Prover
from tallystick.disputes.parties.referee import Referee, waits_never
from tallystick.disputes.parties.task import PartyRole, PartyTask
from tallystick.disputes.parties.watch import GameView
from tallystick.disputes.parties.workspace import Workspace
from tallystick.judging.fault import Fault


def prover(
    shelf: BoardCache,
    workspace: Workspace,
    traces: Callable[[PostedClaim], Trace | None],
    offer: ClaimOffer | None = None,
    conceding: Judge | None = None,
) -> tuple[PartyRole, ...]:
    """Posts its offer, answers, appeals; concedes only with a judge to find it at fault."""
    posting: tuple[PartyRole, ...] = (Poster(offer, shelf),) if offer else ()
    pleading: tuple[PartyRole, ...] = (EvidenceRole(Fault.PROVER, shelf, workspace, conceding),) if conceding else ()
    return (*posting, Prover(shelf, traces, concedes=conceding is not None), *pleading, Appellant(), DueMoves())


def challenger(
    shelf: BoardCache,
    workspace: Workspace,
    doubters: Callable[[PostedClaim], Doubter] | Auditor,
    judge: Judge | None = None,
    evidence: Callable[[DisputeView], Evidence | None] = no_evidence,
    claims: Collection[int] | None = None,
    naming: Callable[[DisputeView], tuple[int, int] | None] | None = None,
) -> tuple[PartyRole, ...]:
    """Looks at claims (all, or those of `claims`), contests, chooses, names what is wrong, pleads, appeals.

    Doubters are asked in this process, which makes no move meanwhile; an `Apart` lets it go on.
    """
    auditor = Inline(doubters) if callable(doubters) else doubters
    pleading: tuple[PartyRole, ...] = ()
    if judge is not None:
        pleading = (EvidenceRole(Fault.CHALLENGER, shelf, workspace, judge, evidence),)
    names: tuple[PartyRole, ...] = (PinpointRole(shelf, workspace, naming),) if naming else ()
    return (Challenger(shelf, workspace, auditor, claims), *names, *pleading, Appellant(), DueMoves())


def member(shelf: BoardCache, workspace: Workspace, judge: Judge) -> tuple[PartyRole, ...]:
    """Enlists, votes, discloses, and moves on what its committees wait for."""
    return (CommitteeMember(shelf, workspace, judge), DueMoves())


def referee(
    shelf: BoardCache, judge: Judge, waits: Callable[[DisputeView], bool] = waits_never
) -> tuple[PartyRole, ...]:
    """Rules or convenes; where it `waits`, the challenger has half of the window to name an element first."""
    return (Referee(shelf, judge, waits), DueMoves())


def focused(roles: Sequence[PartyRole], number: int) -> tuple[PartyRole, ...]:
    """The same roles, in one dispute alone."""
    return tuple(Focused(role, number) for role in roles)


@dataclass(frozen=True)
class Focused:
    """One dispute's share of a role."""

    role: PartyRole
    number: int

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The tasks that are about the dispute."""
        name = view.name_of(self.number)
        yield from (task for task in self.role.tasks(view) if name in task.key)
