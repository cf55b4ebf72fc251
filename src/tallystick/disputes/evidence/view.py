"""The operators that a dispute is about, as the prover's opponent reads them from the board."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

from tallystick.core.digests import Digest, digest_from, tree_root
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import read_document
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.disputes.game.protocols import DisputeView
from tallystick.disputes.game.state import Dispute, cut_places
from tallystick.formats.claims import Claim, InferenceClaim
from tallystick.formats.openings import OpenedOperator, Opening
from tallystick.programs.graph import Constant, Graph, GraphForm, Input, Node, Output, Ref, Role
from tallystick.verdicts.leaf.bundle import LeafBundle, LeafChallenge
from tallystick.verdicts.leaf.bundling import WholeOpening
from tallystick.verdicts.opening.files import OPENING, OPERATOR, VALUES, OpenedValues, follow_operators
from tallystick.verdicts.verdict import require

# Which values cross a cut through the operators of a step.
#
# Operators have one order, that of the graph, so their indices are unique. A cut lies after an operator. A value
# crosses the cut if an operator before it gives the value, and an operator after it reads the value or the graph
# returns it. For a contested range [low, high), only values that are given inside the range have to be opened at its
# cuts. Values from before `low` crossed an earlier cut and were opened there. Inputs and constants are opened with the
# descent.


@dataclass(frozen=True)
class Cuts:
    """A graph, with the place where each value is given and where it is last read; places count operators from 0."""

    graph: Graph

    @cached_property
    def given(self) -> Mapping[Ref, int]:
        """The place of the operator that gives each value."""
        nodes = enumerate(self.graph.nodes)
        return {ref: place for place, node in nodes for ref in node.outputs if ref is not None}

    @cached_property
    def specs(self) -> Mapping[Ref, TensorSpec]:
        """The spec of every value, as the graph states it."""
        return self.graph.specs()

    @cached_property
    def last_read(self) -> Mapping[Ref, int]:
        """The place of the last operator that reads each value; the number of operators if the graph returns it."""
        readers = {ref: place for place, node in enumerate(self.graph.nodes) for ref in node.refs}
        return readers | {output.value: len(self.graph.nodes) for output in self.graph.outputs}

    def crossing(self, low: int, place: int) -> tuple[Ref, ...]:
        """The values that operators `low` … `place` give and that cross the cut after `place`, in graph order."""
        return self.opened_at(low, (place,))

    def opened_at(self, low: int, places: Sequence[int]) -> tuple[Ref, ...]:
        """What a partition of a range from `low` opens: every value that crosses one of its cuts, once.

        `places` are the operators before the cuts, in rising order.
        """
        nodes = enumerate(self.graph.nodes[low : places[-1] + 1], low) if places else ()
        # a value that does not cross the first cut after its operator crosses no later one
        first = ((ref, places[bisect_left(places, place)]) for place, node in nodes for ref in node.outputs)
        return tuple(ref for ref, cut in first if ref is not None and self.last_read.get(ref, -1) > cut)

    def child(self, low: int, high: int) -> Graph | None:
        """The operators of [low, high) as a graph that gives what crosses its end; `None` if nothing does.

        Operators whose results are not needed are left out.
        """
        wanted = self.crossing(low, high - 1)
        return self._graph(low, _needed(self.graph.nodes[low:high], wanted), wanted) if wanted else None

    def _graph(self, low: int, nodes: tuple[Node, ...], wanted: Sequence[Ref]) -> Graph:
        """As `slicing.verification_slice`, but without a pass over the whole graph for each slice."""
        read = dict.fromkeys(ref for node in nodes for ref in node.refs if self.given.get(ref, -1) < low)
        sources = [self._sources.get(ref) or Input(ref, Role.CUT, self.specs[ref]) for ref in read]
        return Graph(
            dialect=self.graph.dialect,
            form=GraphForm.VERIFICATION,
            inputs=tuple(each for each in sources if isinstance(each, Input)),
            constants=tuple(each for each in sources if isinstance(each, Constant)),
            nodes=nodes,
            outputs=tuple(Output(ref, ref) for ref in wanted),
        )

    @cached_property
    def _sources(self) -> Mapping[Ref, Input | Constant]:
        """The inputs and constants of the whole graph by name."""
        return {each.name: each for each in self.graph.sources}


def _needed(nodes: Sequence[Node], wanted: Sequence[Ref]) -> tuple[Node, ...]:
    """Those of the given consecutive nodes that the wanted values depend on, in order."""
    refs, kept = set(wanted), list[Node]()
    for node in reversed(nodes):
        if not refs.isdisjoint(filter(None, node.outputs)):
            refs.update(node.refs)
            kept.append(node)
    return tuple(reversed(kept))


# The files of an opening directory, read once per process: both parties need the same ones in every round.


@dataclass(frozen=True, eq=False)
class Operators:
    """A whole opening, with what follows from its graph and its records."""

    whole: WholeOpening

    @cached_property
    def cuts(self) -> Cuts:
        """Which values cross each cut."""
        return Cuts(self.whole.graph)

    @property
    def specs(self) -> Mapping[Ref, TensorSpec]:
        """The spec of every value, as the graph states it."""
        return self.cuts.specs

    @cached_property
    def digests(self) -> Mapping[Ref, Digest]:
        """The digest of every value.

        Raises `ProofError` if the operators do not follow from one another, `MalformedError` if one is no record.
        """
        return follow_operators(self.whole.opening, self.whole.graph, self.whole.lines)


def read_operators(folder: Path) -> Operators:
    """Read a directory that `tally open --operators` wrote; raises whatever `WholeOpening.read` raises."""
    try:
        return _operators(folder, *_version(folder / OPENING))
    except OSError:
        raise UnavailableError(f"{OPENING}: not there (looked in {folder})") from None


def read_values(folder: Path) -> OpenedValues:
    """The values that are opened in a folder of one's own, which nobody changes."""
    try:
        return _values(folder, *_version(folder / VALUES))
    except OSError:
        return OpenedValues(folder, is_own=True)  # it has none, or none yet


def _version(path: Path) -> tuple[int, int]:
    """Inode and time of a file: parts of the keys below, so that a replaced directory is read again."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


@lru_cache(maxsize=8)
def _operators(folder: Path, _inode: int, _modified_ns: int) -> Operators:
    return Operators(WholeOpening.read(folder))


@lru_cache(maxsize=16)
def _values(folder: Path, _inode: int, _modified_ns: int) -> OpenedValues:
    return OpenedValues(folder, is_own=True)


# The operators that a dispute is about, as the prover's opponent reads them from the board.
#
# The prover supplied all these files, and posted their digests with its moves. So a file that is missing, malformed or
# not the posted one raises `ProofError`.


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
        with as_prover_fault():
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
        with as_prover_fault():
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

    def bundle(self, place: int, challenge: LeafChallenge | None = None) -> LeafBundle:
        """The leaf bundle of one operator, with its values that are opened in any of the folders."""
        with as_prover_fault():
            bare, small = self.whole.bare(self.graph.nodes[place].number, challenge), self.whole.small
        record = bare.operator.record
        values = self._opened({**record.inputs, **record.outputs})
        return replace(bare, values=values, claimed=self._opened(small))

    def _known(self, ref: Ref) -> Tensor | None:
        tensor = self.known.get(self.digests[ref])
        return tensor if tensor is not None and TensorSpec.of(tensor) == self.operators.specs[ref] else None

    def _opened(self, wanted: Mapping[str, Digest]) -> dict[str, Tensor]:
        there = {name: digest for name, digest in wanted.items() if self._is_there(digest)}
        return {name: self.named(name, digest) for name, digest in there.items()}

    def _is_there(self, name: Digest) -> bool:
        return self._holding(name) is not None

    def _holding(self, name: Digest) -> OpenedValues | None:
        """The values of the first folder that has this one."""
        with as_prover_fault():
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
    with as_prover_fault():
        return OpeningView(read_operators(folders[0]), folders, known or {})


def operator_folders(answered: DisputeView) -> tuple[Path, ...]:
    """The folders of the moves at the level of operators, the descent (in one-round mode the statement) first."""
    if answered.claim.levels == 1:
        return (answered.statement, *answered.turns)
    return answered.turns[answered.descended.turn :] if answered.descended else ()


def revealed_operator(folder: Path) -> OpenedOperator:
    """The operator in the folder of a move; raises `ProofError` if there is none."""
    with as_prover_fault():
        return OpenedOperator.from_bytes(read_document(folder / OPERATOR), OPERATOR)


def record_file(place: int) -> str:
    """The name of a record's file among those of a partition."""
    return f"records/{place}.json"


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


def _require_spec(what: str, given: TensorSpec, stated: TensorSpec | None) -> None:
    require(stated in (None, given), f"{what} is {given}, and {stated} in the graph")


@contextmanager
def as_prover_fault() -> Iterator[None]:
    """Turn errors about missing or malformed files into `ProofError`, because the prover supplied the files."""
    try:
        yield
    except (MalformedError, UnavailableError, UsageError) as error:
        raise ProofError(str(error)) from None
