"""An operator that writes over its operand has the bits of one that does not, in every precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tallystick.core.tensors import TensorSpec
from tallystick.engines.torch.kernels import IN_PLACE, prepared
from tallystick.programs.graph import Node
from tallystick.programs.operators.definition import operator

NUMBERS = {"Scalar": 0.044715, "float": 0.044715, "bool": False}
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def node_of(name: str, dtype: str) -> Node:
    """The operator on vectors of 4,096, with numbers that no 16 bits hold."""
    parameters = operator(name).parameters
    operands = {each.name: each.name for each in parameters if each.is_operand}
    attributes = {each.name: NUMBERS.get(each.kind.removesuffix("?")) for each in parameters if not each.is_operand}
    return Node(0, name, operands, attributes, (TensorSpec(dtype, (4096,)),))


def operands_of(node: Node, dtype: torch.dtype) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(4096, generator=generator) for _ in node.operands]
    is_masked = node.operator.startswith("aten.masked_fill")
    found = [each > 0 if is_masked and place == 1 else each.to(dtype) for place, each in enumerate(drawn)]
    return [*found[:2], found[2][0]] if node.operator == "aten.masked_fill.Tensor" else found


@pytest.mark.parametrize("name", sorted(IN_PLACE))
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_compute_the_same_bits(name: str, dtype: str) -> None:
    node = node_of(name, dtype)
    given = operands_of(node, DTYPES[dtype])
    expected = prepared(node, "cpu")(*given)
    first = given[0].clone()
    written = prepared(node, "cpu", in_place=True)(first, *given[1:])
    assert torch.equal(written, expected)
    assert torch.equal(first, expected)
