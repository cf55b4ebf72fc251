"""Checks of one operator that a contract can make itself: they can convict the prover, but never clear it.

Three kinds of evidence, all about the leaf that the prover opened:

* edge: the operator reads a value with other bytes than its writer gave, or its writer comes later in the order;
* cast: a number was converted to F32 or F64, and the result is off by more than two units in the last place;
* product: a product of two F32 numbers is off by more than two units in the last place.

As in the contract, records are rebuilt from their parts into canonical JSON (RFC 8785), and numbers are compared as
integers. Subnormal numbers, infinities and NaN are left to a committee.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tallystick.commitments.digests import Digest
from tallystick.commitments.proofs import check_inclusion
from tallystick.commitments.tree import Hash, leaf_hash
from tallystick.disputes.game.moves import Evidence, RecordForm, TensorForm, ValueWriter
from tallystick.disputes.game.state import Dispute
from tallystick.errors import ProofError, RuleError
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.record import OperatorRecord

CAST: Final = "aten._to_copy.default"
PRODUCT: Final = "aten.mul.Tensor"
NAME_MAX: Final = 1024
ULPS: Final = 2
"""Units in the last place that are allowed here: more than any bound in `operators` allows."""


class Float(NamedTuple):
    """A normal binary number: (−1)^negative · mantissa · 2^exponent, with a mantissa of full width."""

    negative: bool
    mantissa: int
    exponent: int


class FloatLayout(NamedTuple):
    """Bytes, fraction bits and exponent bias of a binary format (IEEE 754-2019 §3.4)."""

    bytes: int
    fraction: int
    bias: int


LAYOUTS: Final = {"F32": FloatLayout(4, 23, 127), "F64": FloatLayout(8, 52, 1023)}


def convict(dispute: Dispute, evidence: Evidence) -> None:
    """Raise `RuleError` with code `evidence` unless the evidence shows that the opened leaf cannot be honest."""
    _require(_leaf(evidence.record) == dispute.leaf, "this is not the record that was opened")
    is_lean = not evidence.tensors if evidence.ground == "edge" else evidence.writer is None
    _require(is_lean, "the evidence holds parts that this ground does not need")
    shows = {"edge": _is_a_broken_edge, "cast": _is_a_wrong_cast, "product": _is_a_wrong_product}
    _require(shows[evidence.ground](dispute, evidence), "the evidence does not show a fault")


def record_bytes(form: RecordForm) -> bytes:
    """The canonical bytes of a record; raises `RuleError` if a reference needs escaping, is too long or comes twice."""
    for name, _ in (*form.inputs, *form.outputs):
        _require(name.isascii() and name.isprintable() and not {'"', "\\"} & set(name), "a name needs escaping")
        _require(1 <= len(name) <= NAME_MAX, "a name is empty or too long for a reference")
    inputs, outputs = dict(form.inputs), dict(form.outputs)
    _require(len(inputs) == len(form.inputs) and len(outputs) == len(form.outputs), "a name stands twice")
    return OperatorRecord(node=form.node, operator=form.operator, inputs=inputs, outputs=outputs).to_bytes()


def _is_a_broken_edge(dispute: Dispute, evidence: Evidence) -> bool:
    writer = evidence.writer
    _require(writer is not None, "the record of the operator that gave the value is missing")
    assert writer is not None
    _stands(dispute, writer)
    given, read = dict(writer.record.outputs), dict(evidence.record.inputs)
    return any(given[name] != read[name] or writer.index >= dispute.low for name in given.keys() & read.keys())


def _is_a_wrong_cast(dispute: Dispute, evidence: Evidence) -> bool:
    _require(evidence.record.operator == CAST and len(evidence.tensors) == 2, "this is no conversion of one tensor")
    _are_the_values(evidence, evidence.tensors[:1], evidence.tensors[1:])
    source, result = (_number(each, evidence.element) for each in evidence.tensors)
    return _is_far(source, result, LAYOUTS[evidence.tensors[1].dtype])


def _is_a_wrong_product(dispute: Dispute, evidence: Evidence) -> bool:
    _require(evidence.record.operator == PRODUCT and len(evidence.tensors) == 3, "this is no product of two tensors")
    _require(all(each.dtype == "F32" for each in evidence.tensors), "the numbers are not F32")
    _are_the_values(evidence, evidence.tensors[:2], evidence.tensors[2:])
    left, right, result = (_number(each, _place(each, evidence)) for each in evidence.tensors)
    exact = Float(left.negative != right.negative, left.mantissa * right.mantissa, left.exponent + right.exponent)
    return _is_far(exact, result, LAYOUTS["F32"])


def _are_the_values(evidence: Evidence, read: tuple[TensorForm, ...], given: tuple[TensorForm, ...]) -> None:
    """Refuse unless the record names exactly these tensors, in the order of its names."""
    record = evidence.record
    _require(tuple(map(_digest, read)) == tuple(name for _, name in record.inputs), "other values were read")
    _require(tuple(map(_digest, given)) == tuple(name for _, name in record.outputs), "other values were given")


def _place(tensor: TensorForm, evidence: Evidence) -> int:
    """The flat place of the element to compare: the named one, or 0 in a tensor of shape ()."""
    result = evidence.tensors[-1]
    _require(tensor.shape in (result.shape, ()), "the shapes are neither equal nor that of one number")
    return 0 if tensor.shape == () else evidence.element


def _is_far(exact: Float, found: Float, layout: FloatLayout) -> bool:
    """Whether `found` differs from `exact` by more than `ULPS` units in its last place."""
    width = exact.mantissa.bit_length() - 1 + exact.exponent
    normal = 1 - layout.bias < width < layout.bias
    _require(normal and abs(exact.exponent - found.exponent) <= 128, "the numbers are too far apart for integers")
    if exact.negative != found.negative:
        return True
    low = min(exact.exponent, found.exponent)
    distance = abs((exact.mantissa << exact.exponent - low) - (found.mantissa << found.exponent - low))
    return distance > ULPS << found.exponent - low


def _number(tensor: TensorForm, element: int) -> Float:
    layout, data = LAYOUTS[tensor.dtype], bytes.fromhex(tensor.data)
    _require((element + 1) * layout.bytes <= len(data), "there is no such element")
    word = int.from_bytes(data[element * layout.bytes : (element + 1) * layout.bytes], "little")
    exponent = word >> layout.fraction & 2 * layout.bias + 1
    _require(0 < exponent < 2 * layout.bias + 1, "the number is zero, subnormal, infinite or NaN")
    mantissa = word & (1 << layout.fraction) - 1 | 1 << layout.fraction
    return Float(bool(word >> 8 * layout.bytes - 1), mantissa, exponent - layout.bias - layout.fraction)


def _digest(form: TensorForm) -> Digest:
    count, data = 1, bytes.fromhex(form.data)
    for side in form.shape:
        count *= side
    _require(count * LAYOUTS[form.dtype].bytes == len(data) > 0, "the bytes are not as many as the shape needs")
    return tensor_digest(Tensor(form.dtype, form.shape, data))


def _stands(dispute: Dispute, writer: ValueWriter) -> None:
    leaf, root = Hash(bytes.fromhex(_leaf(writer.record))), Hash(bytes.fromhex(dispute.root))
    try:
        check_inclusion([Hash(bytes.fromhex(each)) for each in writer.proof], leaf, writer.index, dispute.size, root)
    except ProofError as error:
        raise RuleError("evidence", str(error)) from None


def _leaf(form: RecordForm) -> str:
    return leaf_hash(record_bytes(form)).hex()


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise RuleError("evidence", sentence)
