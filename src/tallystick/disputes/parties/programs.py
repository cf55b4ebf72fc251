"""Which roles make up the program of each party."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tallystick.disputes.game.fault import Fault
from tallystick.disputes.game.moves import Evidence
from tallystick.disputes.game.protocols import Answered, Doubter, Judge, Trace
from tallystick.disputes.game.state import Claim
from tallystick.disputes.parties.appealing import Appellant
from tallystick.disputes.parties.auditing import Auditor, Inline
from tallystick.disputes.parties.challenger import Challenger
from tallystick.disputes.parties.keeper import Keeper
from tallystick.disputes.parties.member import Member
from tallystick.disputes.parties.naming import Namer
from tallystick.disputes.parties.pleading import Pleader, no_evidence
from tallystick.disputes.parties.prover import Offer, Poster, Prover
from tallystick.disputes.parties.referee import Referee, waits_never
from tallystick.disputes.parties.shelf import Shelf
from tallystick.disputes.parties.task import Role, Task
from tallystick.disputes.parties.watch import View
from tallystick.disputes.parties.workspace import Workspace


def prover(
    shelf: Shelf,
    workspace: Workspace,
    traces: Callable[[Claim], Trace | None],
    offer: Offer | None = None,
    conceding: Judge | None = None,
) -> tuple[Role, ...]:
    """Posts its offer, answers, appeals; concedes only with a judge to find it at fault."""
    posting: tuple[Role, ...] = (Poster(offer, shelf),) if offer else ()
    pleading: tuple[Role, ...] = (Pleader(Fault.PROVER, shelf, workspace, conceding),) if conceding else ()
    return (*posting, Prover(shelf, traces, concedes=conceding is not None), *pleading, Appellant(), Keeper())


def challenger(
    shelf: Shelf,
    workspace: Workspace,
    doubters: Callable[[Claim], Doubter] | Auditor,
    judge: Judge | None = None,
    evidence: Callable[[Answered], Evidence | None] = no_evidence,
    claims: Collection[int] | None = None,
    naming: Callable[[Answered], tuple[int, int] | None] | None = None,
) -> tuple[Role, ...]:
    """Looks at claims (all, or those of `claims`), contests, chooses, names what is wrong, pleads, appeals.

    Doubters are asked in this process, which makes no move meanwhile; an `Apart` lets it go on.
    """
    auditor = Inline(doubters) if callable(doubters) else doubters
    pleading: tuple[Role, ...] = ()
    if judge is not None:
        pleading = (Pleader(Fault.CHALLENGER, shelf, workspace, judge, evidence),)
    names: tuple[Role, ...] = (Namer(shelf, workspace, naming),) if naming else ()
    return (Challenger(shelf, workspace, auditor, claims), *names, *pleading, Appellant(), Keeper())


def member(shelf: Shelf, workspace: Workspace, judge: Judge) -> tuple[Role, ...]:
    """Enlists, votes, discloses, and moves on what its committees wait for."""
    return (Member(shelf, workspace, judge), Keeper())


def referee(shelf: Shelf, judge: Judge, waits: Callable[[Answered], bool] = waits_never) -> tuple[Role, ...]:
    """Rules or convenes; where it `waits`, the challenger has half of the window to name an element first."""
    return (Referee(shelf, judge, waits), Keeper())


def focused(roles: Sequence[Role], number: int) -> tuple[Role, ...]:
    """The same roles, in one dispute alone."""
    return tuple(Focused(role, number) for role in roles)


@dataclass(frozen=True)
class Focused:
    """One dispute's share of a role."""

    role: Role
    number: int

    def tasks(self, view: View) -> Iterator[Task]:
        """The tasks that are about the dispute."""
        name = view.name_of(self.number)
        yield from (task for task in self.role.tasks(view) if name in task.key)
