"""Checks that an opening belongs to its record, and an operator's record to its node, by the digests they name."""

from __future__ import annotations

import numpy as np

from tallystick.core.digests import Digest
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.openings import Opening, state_digest_of
from tallystick.formats.records import CallRecord, OperatorRecord
from tallystick.programs.graph import Graph, Node
from tallystick.programs.step_names import BATCH, POSITION, STATE_PREFIXES
from tallystick.verdicts.verdict import require


def check_binding(opening: Opening, bits: bool = True) -> None:
    """Raise `ProofError` unless the record is in its transcript and names the sources and results of the opening.

    Without `bits`, states and outputs need not have the digests in the record: an honest replay on another stack gives
    other bits. In a dispute about one operator they have already been compared within limits.
    """
    record = opening.opened_record()
    given = {name.removeprefix(BATCH): named for name, named in opening.sources.items() if name.startswith(BATCH)}
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
    stated = opening.sources.get(POSITION), opening.results.get(POSITION)
    require(stated == (before, after), f"the operators are not those of step {step}")


def states_around(opening: Opening) -> tuple[Digest, Digest]:
    """The state digests before and after the opened step."""
    before = {name: named for name, named in opening.sources.items() if name.startswith(STATE_PREFIXES)}
    after = {name: named for name, named in opening.results.items() if name.startswith(STATE_PREFIXES)}
    return state_digest_of(before | opening.rest_before), state_digest_of(after | opening.rest_after)


def check_operator(node: Node, record: OperatorRecord) -> None:
    """Raise `ProofError` unless `record` names `node`, its operator, and exactly the values it reads and gives."""
    what, given = f"node {node.number}", {ref for ref in node.outputs if ref is not None}
    require((record.node, record.operator) == (node.number, node.operator), f"{what} is not the one recorded")
    require(record.inputs.keys() == set(node.refs), f"{what} reads other values than its record names")
    require(record.outputs.keys() == given, f"{what} gives other values than its record names")


def check_sources(graph: Graph, opening: Opening) -> None:
    """Raise `ProofError` unless the opening names the inputs and constants of `graph`, and its constants are those."""
    names = {source.name for source in graph.sources}
    require(names == opening.sources.keys(), "the opening names other inputs than the graph has")
    for constant in graph.constants:
        is_same = opening.sources[constant.name] == constant.digest
        require(is_same, f"constant {constant.name} is not the graph's")
