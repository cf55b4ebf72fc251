"""Makes leaf bundles from an opening. Both parties and the board can do so, and all get the same bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tallystick.core.digests import Digest, LeafHashes, leaf_hash, prove_inclusion, tree_root
from tallystick.core.errors import MalformedError, UsageError
from tallystick.formats.openings import OpenedOperator, Opening
from tallystick.formats.records import CallRecord, OperatorRecord
from tallystick.programs.admission import parse_ref
from tallystick.programs.encoding import NodeProof, graph_leaves, header_json, node_text
from tallystick.programs.files import load_program
from tallystick.programs.graph import Graph, Node
from tallystick.programs.step_names import STEP_SLOT
from tallystick.verdicts.leaf.bundle import Edge, GraphHeader, LeafBundle, LeafChallenge, OperandEdges
from tallystick.verdicts.opening.files import GRAPH, OPERATORS, OpenedValues, read_opening, read_operator_lines
from tallystick.verdicts.opening.published import LOSS, SCHEDULE


@dataclass(frozen=True)
class WholeOpening:
    """An opening of all operators, read from the directory that `tally open --operators` wrote."""

    folder: Path
    opening: Opening
    graph: Graph
    lines: tuple[bytes, ...]

    @classmethod
    def read(cls, folder: Path) -> WholeOpening:
        """Read a directory.

        Raises:
            MalformedError: a file is not what it should be.
            UnavailableError: a file is missing, or there are too many records.
        """
        opening = read_opening(folder)
        graph, _ = load_program(folder / GRAPH)
        return cls(folder, opening, graph, tuple(read_operator_lines(folder)))

    @cached_property
    def places(self) -> Mapping[int, int]:
        """The position of every node by its number."""
        return {node.number: place for place, node in enumerate(self.graph.nodes)}

    @cached_property
    def values(self) -> OpenedValues:
        """Its values, as far as they are opened."""
        return OpenedValues(self.folder)

    @cached_property
    def leaves(self) -> LeafHashes:
        """The leaf hashes of the operator records."""
        return LeafHashes([leaf_hash(line) for line in self.lines])

    def record(self, place: int) -> OperatorRecord:
        """The record at a position; raises `UsageError` outside the graph, `MalformedError` if the file is short."""
        if not 0 <= place < len(self.graph.nodes):
            raise UsageError(f"the opening has no operator {place}")
        if place >= len(self.lines):
            raise MalformedError(f"{OPERATORS}: {len(self.lines)} records, and the graph has {len(self.graph.nodes)}")
        return OperatorRecord.from_bytes(self.lines[place], f"{OPERATORS}: line {place + 1}")

    def bundle(self, number: int, challenge: LeafChallenge | None = None) -> LeafBundle:
        """The bundle of node `number`; values that are not opened are left out.

        Raises `UsageError` if the graph has no such node, `MalformedError` if the node has no record, `ProofError` if a
        value does not have the digest that names it.
        """
        bare = self.bare(number, challenge)
        record = bare.operator.record
        values = self.values.opened({**record.inputs, **record.outputs})
        return replace(bare, values=values, claimed=self.values.opened(self.small))

    def bare(self, number: int, challenge: LeafChallenge | None = None) -> LeafBundle:
        """As `bundle`, without values."""
        if number not in self.places:
            raise UsageError(f"the graph has no node {number}")
        place = self.places[number]
        edges = OperandEdges(producers=tuple(self._edges(self.graph.nodes[place])))
        leaves = self._graph_leaves
        proof = _hex(prove_inclusion(leaves, 0, len(leaves.leaves)))
        header = GraphHeader(record=header_json(self.graph), proof=proof)
        return LeafBundle(self.opening, header, self.operator(place), edges, challenge or LeafChallenge())

    def operator(self, place: int) -> OpenedOperator:
        """The operator at a position, with its proofs; raises what `record` raises."""
        record, leaves, index = self.record(place), self._graph_leaves, place + 1
        path = prove_inclusion(leaves, index, len(leaves.leaves))
        line = node_text(self.graph.nodes[place]).encode()
        node = NodeProof(line, index, len(leaves.leaves), tree_root(leaves.leaves), tuple(path))
        opened = cast("dict[str, Any]", node.to_json())
        return OpenedOperator(node=opened, index=place, record=record, proof=self._proof(place))

    @cached_property
    def _graph_leaves(self) -> LeafHashes:
        return LeafHashes(graph_leaves(self.graph))

    def _edges(self, node: Node) -> Iterator[Edge]:
        sources = {source.name for source in self.graph.sources}
        results = [parse_ref(ref) for ref in node.refs if ref not in sources]
        for place in sorted({self.places[result[0]] for result in results if result is not None}):
            yield Edge(index=place, record=self.record(place), proof=self._proof(place))

    def _proof(self, place: int) -> tuple[str, ...]:
        return _hex(prove_inclusion(self.leaves, place, len(self.lines)))

    @cached_property
    def small(self) -> Mapping[str, Digest]:
        """The small values that a published claim checks: the loss, values from the schedule, the optimizer's step."""
        sources, results = self.opening.sources, self.opening.results
        if isinstance(self.opening.opened_record(), CallRecord):
            return {}
        counts = sorted(name for name in sources if name.startswith("optimizer.") and name.endswith(STEP_SLOT))
        named = [*(name for name in sources if name.startswith(SCHEDULE)), *counts[:1]]
        return {name: results[name] for name in (LOSS,) if name in results} | {name: sources[name] for name in named}


def _hex(proof: Collection[bytes]) -> tuple[str, ...]:
    return tuple(node.hex() for node in proof)
