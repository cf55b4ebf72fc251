"""The prover: it posts a claim, and answers disputes over it from its trace."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from tallystick.core.errors import ProofError
from tallystick.disputes.coordinators.coordinator import files_of
from tallystick.disputes.evidence.claim_statement import ClaimStatement
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.game.moves import Concede, Descend, Move, Partition, Post, Reveal
from tallystick.disputes.game.protocols import Descent, Files, OpenedLeaves, Trace
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, cut_places
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
        found = (claim.prover == view.party and self.offer.is_of(claim) for claim in view.state.claims)
        return next((number for number, is_it in enumerate(found) if is_it), None)

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


@dataclass
class Prover:
    """Answers every dispute over claims for which `traces` gives a trace; `traces` itself has to be cheap.

    With `concedes`, it concedes if its own trace contradicts what it claimed. With `leaves_time`, it answers only once
    half of the time for a move is over, as a watchtower does for a prover that is silent.
    """

    cache: BoardCache
    traces: Callable[[PostedClaim], Trace | None]
    concedes: bool = False
    leaves_time: bool = False

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The disputes in which the prover's clock runs."""
        for number, seconds in view.turns.items():
            dispute = view.state.disputes[number]
            is_due = not self.leaves_time or 2 * seconds <= dispute.clocks.prover
            is_ours = dispute.phase in (Phase.PARTITION, Phase.LEAF) and self.traces(view.claim_of(dispute))
            if is_due and is_ours:
                key = f"answer-{view.name_of(number)}-{dispute.turn}"
                yield PartyTask(key, seconds, partial(self._answer, view, number), kept=True)

    def _answer(self, view: GameView, number: int) -> Move:
        dispute = view.state.disputes[number]
        trace = self.traces(view.claim_of(dispute))
        assert trace is not None  # checked by `tasks`
        try:
            if dispute.phase is Phase.PARTITION:
                opened = trace.partition(dispute, cut_places(dispute.low, dispute.high, view.rules.ways))
                data = self.cache.publish(opened.files)
                return Partition(actor=view.party, dispute=number, turn=dispute.turn, cuts=opened.cuts, data=data)
            return self._leaf(view, number, dispute, trace)
        except ProofError:
            if not self.concedes:
                raise
            return Concede(actor=view.party, dispute=number)

    def _leaf(self, view: GameView, number: int, dispute: Dispute, trace: Trace) -> Move:
        descent = trace.descend(dispute) if dispute.level > 1 else None
        if descent is None:
            opened = trace.reveal(dispute)
            (cut,), data = opened.cuts, self.cache.publish(opened.files)
            return Reveal(
                actor=view.party, dispute=number, turn=dispute.turn, leaf=cut.leaf, proof=cut.proof, data=data
            )
        return Descend(
            actor=view.party,
            dispute=number,
            turn=dispute.turn,
            leaf=descent.record.leaf,
            proof=descent.record.proof,
            root=descent.root,
            size=descent.size,
            data=self.cache.publish(descent.files),
        )


# The claim that a folder can make: the tree of its records, or in one-round mode the tree of all its operators.


def offer_of(folder: Path, statement: ClaimStatement | None = None) -> ClaimOffer:
    """The offer of a finished run, of recorded calls of a model, or of an opening of all operators.

    `statement` is that of the folder, if it was read already. Raises `UnavailableError` if there is none,
    `MalformedError` if its claim is not readable, and `UsageError` for calls that could not be defended because their
    graph does not accept them.
    """
    found = statement or statement_at(folder)
    log = found.tree
    found.require_disputable()
    return ClaimOffer(log.root.removeprefix("sha256:"), log.size, files_of(folder), found.levels)
