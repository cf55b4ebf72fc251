"""What a prover claims: the offer of a folder, its post as a claim, and the trace behind it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from tallystick.disputes.coordinators.coordinator import files_of
from tallystick.disputes.evidence.calls import require_disputable
from tallystick.disputes.evidence.statement import CallsStatement, Statement, statement_at
from tallystick.disputes.game.moves import Move, Post
from tallystick.disputes.game.protocols import Descent, Files, OpenedLeaves, Trace
from tallystick.disputes.game.state import Dispute, PostedClaim
from tallystick.disputes.parties.game_view import BoardCache, GameView
from tallystick.disputes.parties.player import PartyTask


@dataclass(frozen=True)
class ClaimOffer:
    """The content of a claim to post: a tree of records, and the files of its statement."""

    root: str
    size: int
    files: Files
    levels: int = 2
    seal: str | None = None

    def is_of(self, claim: PostedClaim) -> bool:
        """Whether a claim is about this tree."""
        return (claim.root, claim.size, claim.levels) == (self.root, self.size, self.levels)


@dataclass
class PostingRole:
    """Puts an offer at the board and posts it as a claim, once."""

    offer: ClaimOffer
    cache: BoardCache

    def number(self, view: GameView) -> int | None:
        """The number of the posted claim, `None` before it is posted; it is found by its tree."""
        matches = (claim.prover == view.party and self.offer.is_of(claim) for claim in view.state.claims)
        return next((number for number, is_it in enumerate(matches) if is_it), None)

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The post of the claim, until it is accepted."""
        if self.number(view) is None:
            key = f"post-{self.offer.levels}-{self.offer.root}"
            yield PartyTask(key, None, partial(self._post, view), kept=True, single=True)

    def _post(self, view: GameView) -> Move:
        offer = self.offer
        return Post(
            actor=view.party,
            value=view.rules.prover_bond,
            root=offer.root,
            size=offer.size,
            levels=1 if offer.levels == 1 else 2,
            statement=self.cache.publish(offer.files),
            seal=offer.seal or secrets.token_hex(32),
        )


@dataclass
class LazyTrace:
    """A trace that is made on first use, so that nothing is loaded without a dispute."""

    make: Callable[[], Trace]

    @cached_property
    def trace(self) -> Trace:
        """The trace, made on first use."""
        return self.make()

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        """See `Trace`."""
        return self.trace.partition(dispute, places)

    def descend(self, dispute: Dispute) -> Descent | None:
        """See `Trace`."""
        return self.trace.descend(dispute)

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """See `Trace`."""
        return self.trace.reveal(dispute)


# The claim that a folder can make: the tree of its records, or in one-round mode the tree of all its operators.


def offer_of(folder: Path, statement: Statement | None = None) -> ClaimOffer:
    """The offer of a finished run, of recorded calls of a model, or of an opening of all operators.

    `statement` is that of the folder, if it was read already. Raises `UnavailableError` if there is none,
    `MalformedError` if its claim is not readable, and `UsageError` for calls that could not be defended because their
    graph does not accept them.
    """
    stated = statement or statement_at(folder)
    log = stated.tree
    if isinstance(stated, CallsStatement):
        require_disputable(stated.calls)
    return ClaimOffer(log.root.removeprefix("sha256:"), log.size, files_of(folder), stated.levels)
