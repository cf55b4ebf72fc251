"""The operators that a dispute is about, as the prover's opponent reads them from the board.

The prover supplied all these files, and posted their digests with its moves. So a file that is missing, malformed or
not the posted one raises `ProofError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tallystick.commitments.digests import Digest, digest_from
from tallystick.commitments.tree import tree_root
from tallystick.disputes.evidence.cuts import Cuts
from tallystick.disputes.evidence.whole import Operators, read_operators, read_values
from tallystick.disputes.game.partition import cut_places
from tallystick.disputes.game.protocols import DisputeView
from tallystick.disputes.game.state import Dispute
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.graphs.graph import Graph, Ref
from tallystick.judging.findings import require
from tallystick.judging.leaf.bundle import LeafBundle, LeafChallenge
from tallystick.judging.leaf.bundling import WholeOpening
from tallystick.judging.opening.files import OPERATOR
from tallystick.judging.opening.values import OpenedValues
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.claim import Claim
from tallystick.transcripts.inference import InferenceClaim
from tallystick.transcripts.opening import OpenedOperator, Opening


@dataclass(frozen=True)
class OpeningView:
    """An opening of all operators without inner values, and the folders with the values that were opened later.

    The folders are the party's own: a value is compared with its digest when it is read for the first time, whichever
    answer that belongs to, and is not kept in memory. `known` are values that the party has of its own.
    """

    operators: Operators
    folders: tuple[Path, ...]
    known: Mapping[Digest, Tensor] = field(default_factory=dict)

    @property
    def whole(self) -> WholeOpening:
        """The opening."""
        return self.operators.whole

    @property
    def opening(self) -> Opening:
        """Which record is opened."""
        return self.whole.opening

    @property
    def graph(self) -> Graph:
        """The graph that the prover says it ran."""
        return self.whole.graph

    @property
    def cuts(self) -> Cuts:
        """Which values cross each cut."""
        return self.operators.cuts

    @cached_property
    def digests(self) -> Mapping[Ref, Digest]:
        """The digest of every value; raises `ProofError` unless all operators follow from one another."""
        with supplied():
            return self.operators.digests

    def value(self, ref: Ref) -> Tensor:
        """An opened value of the spec that the graph states; raises `ProofError` if there is none."""
        return self.named(ref, self.digests[ref], self.operators.specs[ref])

    def opened(self, ref: Ref) -> Tensor | None:
        """As `value`; `None` if the value is not opened. Raises `ProofError` if its bytes are others."""
        return self.value(ref) if self._is_there(self.digests[ref]) else None

    def values(self, refs: Iterable[Ref]) -> dict[Ref, Tensor]:
        """Several opened values; raises what `value` raises. Of those that are known, the opened bytes are not read."""
        return {ref: self._known(ref) or self.value(ref) for ref in dict.fromkeys(refs)}

    def results(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Opened results of the step by the names of the graph's outputs."""
        refs = {output.name: output.value for output in self.graph.outputs}
        return {name: self.value(refs[name]) for name in names}

    def named(self, what: str, name: Digest, spec: TensorSpec | None = None) -> Tensor:
        """The opened value with a digest; raises `ProofError` if there is none, or if it has another spec."""
        values = self._holding(name)
        if values is None:
            raise ProofError(f"{what} is not opened")
        with supplied():
            return _of_spec(what, values[name], spec)

    def check(self, dispute: Dispute) -> None:
        """Raise `ProofError` unless the operators are the posted ones, and follow from one another."""
        log = self.opening.operators
        root = tree_root(self.whole.leaves.leaves)
        require((log.root, log.size) == (digest_from(root), len(self.whole.lines)), "operators.jsonl has another root")
        require((root.hex(), log.size) == (dispute.root, dispute.size), "the opening is not that of the posted tree")
        assert self.digests  # reading raises if operators do not follow from one another

    def check_ends(self) -> None:
        """Raise `ProofError` unless everything that the step read and gave is opened, with the stated specs."""
        for ref in self._ends():
            self.value(ref)

    def require_ends(self) -> None:
        """As `check_ends`, by the list of what is opened: no value is read, or compared with its digest."""
        for ref in self._ends():
            values = self._holding(self.digests[ref])
            if values is None:
                raise ProofError(f"{ref} is not opened")
            _require_spec(ref, values.spec(self.digests[ref]), self.operators.specs[ref])

    def _ends(self) -> tuple[Ref, ...]:
        """What the step read and gave."""
        return (*(each.name for each in self.graph.sources), *(each.value for each in self.graph.outputs))

    def check_cuts(self, dispute: Dispute) -> None:
        """Raise `ProofError` unless what crosses the cuts of the last partition is opened."""
        for ref in self.cuts.opened_at(dispute.low, places_of(dispute)):
            self.value(ref)

    def bundle(self, place: int, asked: LeafChallenge | None = None) -> LeafBundle:
        """The leaf bundle of one operator, with its values that are opened in any of the folders."""
        with supplied():
            bare, small = self.whole.bare(self.graph.nodes[place].number, asked), self.whole.small
        record = bare.operator.record
        values = self._opened({**record.inputs, **record.outputs})
        return replace(bare, values=values, claimed=self._opened(small))

    def _known(self, ref: Ref) -> Tensor | None:
        tensor = self.known.get(self.digests[ref])
        return tensor if tensor is not None and TensorSpec.of(tensor) == self.operators.specs[ref] else None

    def _opened(self, wanted: Mapping[str, Digest]) -> dict[str, Tensor]:
        there = {name: found for name, found in wanted.items() if self._is_there(found)}
        return {name: self.named(name, found) for name, found in there.items()}

    def _is_there(self, name: Digest) -> bool:
        return self._holding(name) is not None

    def _holding(self, name: Digest) -> OpenedValues | None:
        """The values of the first folder that has this one."""
        with supplied():
            return next((values for values in self._opened_in if name in values), None)

    @cached_property
    def _opened_in(self) -> tuple[OpenedValues, ...]:
        return tuple(map(read_values, self.folders))


def view_of(answered: DisputeView, known: Mapping[Digest, Tensor] | None = None) -> OpeningView:
    """What the prover opened at the level of operators, for a party that has `known` values of its own.

    Raises `ProofError` if it cannot be read.
    """
    folders = operator_folders(answered)
    if not folders:
        raise ProofError("no operators were opened")
    with supplied():
        return OpeningView(read_operators(folders[0]), folders, known or {})


def operator_folders(answered: DisputeView) -> tuple[Path, ...]:
    """The folders of the moves at the level of operators, the descent (in one-round mode the statement) first."""
    if answered.claim.levels == 1:
        return (answered.statement, *answered.turns)
    return answered.turns[answered.descended.turn :] if answered.descended else ()


def revealed_operator(folder: Path) -> OpenedOperator:
    """The operator in the folder of a move; raises `ProofError` if there is none."""
    with supplied():
        return OpenedOperator.from_bytes(read_document(folder / OPERATOR), OPERATOR)


def places_of(dispute: Dispute) -> Sequence[int]:
    """The places of the leaves of the last partition."""
    return cut_places(dispute.low, dispute.high, len(dispute.cuts) + 1) if dispute.cuts else ()


def require_claim(opening: Opening, claim: Claim | InferenceClaim, graph: Digest | None) -> None:
    """Raise `ProofError` unless an opening names this claim, its transcript and its graph."""
    require(opening.claim == claim.identity, f"the opening belongs to the claim {opening.claim}")
    require(opening.transcript == claim.transcript, "the opening brings another transcript than the claim")
    require(opening.graph == graph, f"the operators are those of {opening.graph}, another graph than the claim's")


def _of_spec(what: str, tensor: Tensor, spec: TensorSpec | None) -> Tensor:
    _require_spec(what, TensorSpec.of(tensor), spec)
    return tensor


def _require_spec(what: str, found: TensorSpec, stated: TensorSpec | None) -> None:
    require(stated in (None, found), f"{what} is {found}, and {stated} in the graph")


@contextmanager
def supplied() -> Iterator[None]:
    """Turn errors about missing or malformed files into `ProofError`, because the prover supplied the files."""
    try:
        yield
    except (MalformedError, UnavailableError, UsageError) as error:
        raise ProofError(str(error)) from None
