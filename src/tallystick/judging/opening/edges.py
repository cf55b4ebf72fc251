"""Checks that the operator records of an opening connect its sources to its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tallystick.commitments.digests import Digest
from tallystick.errors import ProofError
from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.judging.findings import require
from tallystick.judging.opening.binding import check_operator
from tallystick.judging.opening.files import OPERATORS
from tallystick.judging.operator_line import given_in
from tallystick.transcripts.opening import Opening
from tallystick.transcripts.record import OperatorRecord


def follow_operators(opening: Opening, graph: Graph, lines: Collection[bytes]) -> dict[Ref, Digest]:
    """The digest of every value, from the sources of the opening through all records to its results.

    Raises `ProofError` if an operator reads a value that was not given, `MalformedError` if a line is not a record.
    """
    digests: dict[Ref, Digest] = dict(opening.sources)
    try:
        _check_sources(graph, opening)
        _follow(graph, lines, digests)
        _check_results(graph, opening, digests)
    except ProofError:
        for number, line in enumerate(lines, 1):  # report a line that is not a record at all before any other error
            _read_record(line, number)
        raise
    return digests


def _check_sources(graph: Graph, opening: Opening) -> None:
    names = {each.name for each in graph.inputs} | {each.name for each in graph.constants}
    require(names == opening.sources.keys(), "the opening names other inputs than the graph has")
    for each in graph.constants:
        require(opening.sources[each.name] == each.digest, f"constant {each.name} is not the graph's")


def _follow(graph: Graph, lines: Collection[bytes], digests: dict[Ref, Digest]) -> None:
    """Add the digests of all results; each record must belong to its node and read the values that were given."""
    require(len(lines) == len(graph.nodes), f"{len(lines)} operators, and the graph has {len(graph.nodes)}")
    for number, (node, line) in enumerate(zip(graph.nodes, lines, strict=True), 1):
        given = given_in(line, node, digests)
        digests |= _checked(node, _read_record(line, number), digests) if given is None else given


def _read_record(line: bytes, number: int) -> OperatorRecord:
    return OperatorRecord.from_bytes(line, f"{OPERATORS}: line {number}")


def _checked(node: Node, record: OperatorRecord, digests: Mapping[Ref, Digest]) -> Mapping[Ref, Digest]:
    """The digests of the results in a record; raises `ProofError` naming the field that is wrong."""
    check_operator(node, record)
    for ref, found in record.inputs.items():
        require(digests.get(ref) == found, f"node {node.number} reads another {ref} than was given")
    return record.outputs


def _check_results(graph: Graph, opening: Opening, digests: Mapping[Ref, Digest]) -> None:
    found = {output.name: digests[output.value] for output in graph.outputs}
    require(found == opening.results, "the opening names other results than the operators give")
