"""The line of an operator record, built from its node: what parsing accepts, and nothing else."""

from __future__ import annotations

import pytest

from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError
from tallystick.core.tensors import TensorSpec
from tallystick.formats.openings import given_in, operator_line
from tallystick.formats.records import OperatorRecord
from tallystick.programs.graph import Node, Ref

SPEC = TensorSpec("F32", (2,))
REFS: tuple[Ref, ...] = ("weights.a", "n2", "n10", "n11", "n11.2")
NAMES: dict[Ref, Digest] = {ref: digest("tensor", ref.encode()) for ref in REFS}
OTHER = digest("tensor", b"other")
PRODUCT = Node(10, "aten.mm.default", {"self": "weights.a", "mat2": "n2"}, {}, (SPEC,))
SPLIT = Node(11, "aten.split.Tensor", {"self": ("n10", None, "n2"), "more": None}, {"dim": 0}, (SPEC, None, SPEC))
LINE = operator_line(PRODUCT, NAMES, NAMES)


def record(node: Node) -> OperatorRecord:
    inputs = {ref: NAMES[ref] for ref in node.refs}
    outputs = {ref: NAMES[ref] for ref in node.outputs if ref is not None}
    return OperatorRecord(node=node.number, operator=node.operator, inputs=inputs, outputs=outputs)


@pytest.mark.parametrize("node", [PRODUCT, SPLIT], ids=lambda node: node.operator)
def test_it_is_the_record_in_canonical_form(node: Node) -> None:
    line = operator_line(node, NAMES, NAMES)
    assert line == record(node).to_bytes()
    assert OperatorRecord.from_bytes(line, "line") == record(node)
    assert given_in(line, node, NAMES) == record(node).outputs


def test_any_result_may_be_claimed() -> None:
    line = operator_line(PRODUCT, NAMES, {"n10": OTHER})
    assert given_in(line, PRODUCT, NAMES) == {"n10": OTHER}


@pytest.mark.parametrize(
    "line",
    [
        operator_line(SPLIT, NAMES, NAMES),
        operator_line(PRODUCT, NAMES | {"n2": OTHER}, NAMES),
        LINE.replace(b'"node":10', b'"node":11'),
        LINE.replace(b"aten.mm.default", b"aten.bmm.default"),
        LINE.replace(b'"n10":', b'"n10.1":'),
        LINE.replace(b'"n2":', b'"n3":'),
        LINE.replace(b"}}", b'},"more":1}'),
        LINE.replace(b"}}", b',"n10.1":"' + OTHER.encode() + b'"}}'),
        LINE.replace(b":", b": ", 1),
        LINE + b" ",
        LINE[:-66] + LINE[-66:].upper(),
        LINE[:-1],
        LINE.replace(b"n2", b"n\xff"),
        b'{"outputs":{}}',
        b"",
    ],
    ids=range(15),
)
def test_no_other_line_is_taken_for_it(line: bytes) -> None:
    assert given_in(line, PRODUCT, NAMES) is None


def test_a_line_over_a_value_that_nobody_gave_is_refused_and_is_a_record_all_the_same() -> None:
    assert given_in(LINE, PRODUCT, {"n2": NAMES["n2"]}) is None
    assert OperatorRecord.from_bytes(LINE, "line").node == 10
    with pytest.raises(MalformedError, match="line"):
        OperatorRecord.from_bytes(LINE[:-1], "line")
