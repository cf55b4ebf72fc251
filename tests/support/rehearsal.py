"""A dispute played through in one process: both parties and a judge, without coordinator, board or clock.

Every move goes through the game (`game.apply`), and what a coordinator's board would hold lies in folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from tallystick.core.digests import Digest, digest_bytes
from tallystick.disputes.coordinators.coordinator import manifest_digest
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Choose, Contest, Descend, Move, Partition, Post, Protest, Reveal
from tallystick.disputes.game.protocols import (
    Descended,
    Descent,
    DisputeView,
    Doubt,
    Doubter,
    Files,
    Judge,
    OpenedLeaves,
    Trace,
)
from tallystick.disputes.game.state import Dispute, Phase, Rules, State, bounds, cut_places
from tallystick.verdicts.verdict import Fault

PROVER, CHALLENGER, TREASURY, REFEREE = (f"{number:064x}" for number in (1, 2, 3, 4))
RULES: Final = Rules(treasury=TREASURY, referee=REFEREE)


@dataclass(frozen=True)
class Outcome:
    """How a dispute ended: who is at fault and why, where it stood, and what the prover put at the board."""

    fault: Fault | None
    reason: str
    answered: DisputeView
    moves: tuple[Move, ...]

    @property
    def dispute(self) -> Dispute:
        """The dispute as it came to its ruling."""
        return self.answered.dispute

    @property
    def bytes_opened(self) -> int:
        """How much the prover opened in all; a value that was opened twice counts once."""
        names = {path.name: path for turn in self.answered.turns for path in turn.rglob("*") if path.is_file()}
        return sum(path.stat().st_size for path in names.values())


@dataclass
class Rehearsal:
    """One claim over `statement`, disputed under `rules`; `folder` takes what would lie at the board."""

    statement: Path
    folder: Path
    rules: Rules = RULES
    state: State = field(init=False)
    turns: list[Path] = field(default_factory=list)
    descended: Descended | None = None
    moves: list[Move] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = State(self.rules)
        claimed = statement_at(self.statement)
        root, nothing = digest_bytes(claimed.tree.root).hex(), manifest_digest({})
        bond = self.rules.prover_bond
        self._make(
            Post(
                actor=PROVER,
                value=bond,
                root=root,
                size=claimed.tree.size,
                levels=claimed.levels,
                statement=nothing,
                seal="0" * 64,
            )
        )

    def play(self, trace: Trace, doubter: Doubter, judge: Judge, doubt: Doubt | None = None) -> Outcome | None:
        """Play a dispute to its ruling; `None` where the challenger does not doubt, and is not made to by `doubt`."""
        found = doubt or doubter.doubt(self.state.claims[0], self.statement)
        if found is None:
            return None
        price = self.rules.challenger_bond + self.rules.deposit
        self._make(Contest(actor=CHALLENGER, value=price, claim=0, low=found.low, high=found.high))
        while self.dispute.phase is not Phase.RULING:
            self._make(self._challenge(doubter) if self.dispute.phase is Phase.CHOOSE else self._answer(trace))
        answered = self._answered()
        fault, reason = judge.rule(answered, "5a" * 32)
        return Outcome(fault, reason, answered, tuple(self.moves))

    @property
    def dispute(self) -> Dispute:
        """The dispute as it stands."""
        return self.state.disputes[0]

    def _answer(self, trace: Trace) -> Move:
        dispute = self.dispute
        if dispute.phase is Phase.PARTITION:
            opened = trace.partition(dispute, cut_places(dispute.low, dispute.high, self.rules.ways))
            data = self._lay(opened.files)
            return Partition(actor=PROVER, dispute=0, turn=dispute.turn, cuts=opened.cuts, data=data)
        descent = trace.descend(dispute) if dispute.level > 1 else None
        return self._revealed(trace.reveal(dispute)) if descent is None else self._descended(descent)

    def _descended(self, descent: Descent) -> Move:
        self.descended = Descended(len(self.turns), descent.record.leaf)
        leaf, data = descent.record, self._lay(descent.files)
        named = {"leaf": leaf.leaf, "proof": leaf.proof, "root": descent.root, "size": descent.size, "data": data}
        return Descend.model_validate({"actor": PROVER, "dispute": 0, "turn": self.dispute.turn, **named})

    def _revealed(self, opened: OpenedLeaves) -> Move:
        (cut,), data = opened.cuts, self._lay(opened.files)
        return Reveal(actor=PROVER, dispute=0, turn=self.dispute.turn, leaf=cut.leaf, proof=cut.proof, data=data)

    def _challenge(self, doubter: Doubter) -> Move:
        dispute = self.dispute
        chosen = doubter.choose(self._answered(), children_of(dispute.low, dispute.high, self.rules.ways))
        if isinstance(chosen, int):
            return Choose(actor=CHALLENGER, dispute=0, turn=dispute.turn, child=chosen)
        return Protest(actor=CHALLENGER, dispute=0, turn=dispute.turn, ground=chosen)

    def _answered(self) -> DisputeView:
        return DisputeView(self.state.claims[0], 0, self.dispute, self.statement, tuple(self.turns), self.descended)

    def _make(self, move: Move) -> None:
        self.moves.append(move)
        self.state = apply(self.state, move, len(self.moves))

    def _lay(self, files: Files) -> Digest:
        """Copy what the prover opened into a folder of its own."""
        folder = self.folder / str(len(self.turns))
        folder.mkdir(parents=True)
        for name, source in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source if isinstance(source, bytes) else source.read_bytes())
        self.turns.append(folder)
        return manifest_digest(files)


def children_of(low: int, high: int, ways: int) -> Sequence[tuple[int, int]]:
    """The ranges of a partition's children."""
    ends = bounds(low, high, ways)
    return list(pairwise(ends))
