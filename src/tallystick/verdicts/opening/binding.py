"""Checks that the operator records of an opening belong to their record and connect its sources to its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from tallystick.core.digests import Digest
from tallystick.core.errors import ProofError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.openings import Opening, given_in, state_digest_of
from tallystick.formats.records import CallRecord, OperatorRecord
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.step_names import BATCH, POSITION, STATE_PREFIXES
from tallystick.verdicts.opening.files import OPERATORS
from tallystick.verdicts.verdict import require

# Checks that an opening belongs to its record, and an operator's record to its node, by the digests they name.


def check_binding(opening: Opening, bits: bool = True) -> None:
    """Raise `ProofError` unless the record is in its transcript and names the sources and results of the opening.

    Without `bits`, states and outputs need not have the digests in the record: an honest replay on another stack gives
    other bits. In a dispute about one operator they have already been compared within limits.
    """
    record = opening.opened_record()
    given = {name.removeprefix(BATCH): found for name, found in opening.sources.items() if name.startswith(BATCH)}
    read, index = state_digest_of(given), record.index
    if isinstance(record, CallRecord):
        require(read == record.inputs, f"the operators read other inputs than call {index}")
        same = not bits or state_digest_of(opening.results) == record.outputs
        require(same, f"the operators give other outputs than call {index}")
        return
    check_position(opening, index)
    if bits:
        before, after = states_around(opening)
        require(record.pre.exact in (None, before), f"the operators do not start from the state before step {index}")
        require(record.post.exact in (None, after), f"the operators do not end in the state after step {index}")
    require(record.batch.digest in (None, read), f"the operators read another batch than step {index}")


def check_position(opening: Opening, step: int) -> None:
    """Raise `ProofError` unless the operators lead from the state before `step` to the one after it."""
    before, after = (tensor_digest(Tensor.of(np.asarray(count, np.int64))) for count in (step - 1, step))
    found = opening.sources.get(POSITION), opening.results.get(POSITION)
    require(found == (before, after), f"the operators are not those of step {step}")


def states_around(opening: Opening) -> tuple[Digest, Digest]:
    """The state digests before and after the opened step."""
    before = {name: found for name, found in opening.sources.items() if name.startswith(STATE_PREFIXES)}
    after = {name: found for name, found in opening.results.items() if name.startswith(STATE_PREFIXES)}
    return state_digest_of(before | opening.rest_before), state_digest_of(after | opening.rest_after)


def check_operator(node: Node, record: OperatorRecord) -> None:
    """Raise `ProofError` unless `record` names `node`, its operator, and exactly the values it reads and gives."""
    what, given = f"node {node.number}", {ref for ref in node.outputs if ref is not None}
    require((record.node, record.operator) == (node.number, node.operator), f"{what} is not the one recorded")
    require(record.inputs.keys() == set(node.refs), f"{what} reads other values than its record names")
    require(record.outputs.keys() == given, f"{what} gives other values than its record names")


# Checks that the operator records of an opening connect its sources to its results.


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
