"""Random floats of JAX are put together from bits; here they are recognized, to be given by arithmetic.

`jax.random.uniform` shifts 32 random bits to the right until 23 are left, and sets the bits of 1.0 above them. Read as
an F32, that is 1 + k ÷ 2²³, where k is what the 23 bits are as an integer. Every step of this formula is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallystick.graphs.graph import Node, Ref, result_ref
from tallystick.operators.definition import Attribute
from tallystick.tensors.spec import TensorSpec

FRACTION_BITS: Final = 23
BITS_OF_ONE: Final = 0x3F800000


def shifted_bits(nodes: Sequence[Node], ref: Ref) -> Ref | None:
    """The 23 bits as integers, if `ref` is their union with the bits of 1.0; `None` for anything else."""
    union = _producer(nodes, ref, "stablehlo.or")
    for bits, ones in (union.refs, union.refs[::-1]) if union is not None else ():
        shift = _producer(nodes, bits, "stablehlo.shift_right_logical")
        if shift is None or _integer(nodes, ones) != BITS_OF_ONE:
            continue
        places, spec = _integer(nodes, shift.refs[1]), shift.results[0]
        if spec is not None and spec.dtype == "U32" and places is not None and 32 - FRACTION_BITS <= places < 32:
            return bits
    return None


def one_and_fraction(bits: Ref, spec: TensorSpec, first: int) -> list[Node]:
    """1 + k ÷ 2²³ of the integers `bits`, as nodes from number `first` on; the last one gives it, with `spec`."""
    numbers = [result_ref(first + place, 0) for place in range(4)]
    converted, share, scaled, one = numbers
    return [
        Node(first, "stablehlo.convert", {"operand": bits}, {"dtype": spec.dtype}, (spec,)),
        _constant(first + 1, 2.0**-FRACTION_BITS, spec),
        Node(first + 2, "stablehlo.multiply", {"lhs": converted, "rhs": share}, {}, (spec,)),
        _constant(first + 3, 1.0, spec),
        Node(first + 4, "stablehlo.add", {"lhs": scaled, "rhs": one}, {}, (spec,)),
    ]


def _constant(number: int, value: float, spec: TensorSpec) -> Node:
    attributes: dict[str, Attribute] = {"value": value, "shape": spec.shape, "dtype": spec.dtype}
    return Node(number, "stablehlo.constant", {}, attributes, (spec,))


def _integer(nodes: Sequence[Node], ref: Ref) -> int | None:
    """The one integer that all elements are, where the program says so."""
    spread = _producer(nodes, ref, "stablehlo.broadcast_in_dim")
    constant = _producer(nodes, ref if spread is None else spread.refs[0], "stablehlo.constant")
    value = None if constant is None else constant.attributes["value"]
    return value if isinstance(value, int) else None


def _producer(nodes: Sequence[Node], ref: Ref, operator: str) -> Node | None:
    return next((node for node in reversed(nodes) if node.operator == operator and ref in node.outputs), None)
