"""Whatever stands in the attributes of an allowed operator: its types come out, or a refusal, with little work."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.admission import Deriver
from tallystick.programs.graph import Node
from tallystick.programs.operators.definition import OPERATORS, Parameter, operator
from tests.support.effort import bounded_calls

DRAWS = 25
CALLS = 100_000
SHAPES = [(), (1,), (4,), (0,), (2, 3), (3, 2), (2, 3, 4), (1, 2, 5, 5), (10**6,), (2**20, 2**12), (1,) * 8]
DTYPES = ["F32", "F32", "F32", "BF16", "F64", "I64", "I32", "U8", "BOOL"]
INTEGERS = [0, 1, 2, 3, -1, -2, -7, 5, 64, 10**6, 2**31, 2**53 - 1, 1 - 2**53]
FLOATS = [0.0, 1.0, -1.0, 0.5, 1e308, -0.0, 5e-324, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "none", "tanh", "mean", "NCHW", "x" * 50, "{", "0"]


def attribute(kind: str, draw: random.Random) -> Any:
    if kind.endswith("?"):
        return None if draw.random() < 0.4 else attribute(kind[:-1], draw)
    if kind.endswith("[]"):
        length = draw.choice([0, 1, 2, 2, 3, 4, 4096 if draw.random() < 0.1 else 4])
        return tuple(attribute(kind[:-2], draw) for _ in range(length))
    if kind == "Scalar":
        kind = draw.choice(["int", "float", "bool"])
    choices: dict[str, list[Any]] = {"int": INTEGERS, "float": FLOATS, "bool": [True, False], "str": TEXTS}
    return draw.choice(choices.get(kind, DTYPES))


def operand(parameter: Parameter, draw: random.Random, specs: dict[str, TensorSpec]) -> Any:
    def one() -> str:
        name = f"v{len(specs)}"
        specs[name] = TensorSpec(draw.choice(DTYPES), draw.choice(SHAPES))
        return draw.choice(sorted(specs)) if draw.random() < 0.5 else name

    if parameter.kind.endswith("[]"):
        absent = 0.3 if parameter.kind == "Tensor?[]" else 0
        return tuple(None if draw.random() < absent else one() for _ in range(draw.choice([0, 1, 2, 3, 200])))
    return None if parameter.kind == "Tensor?" and draw.random() < 0.5 else one()


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_types_or_a_refusal(name: str) -> None:
    draw = random.Random(name)
    for _ in range(DRAWS):
        specs: dict[str, TensorSpec] = {}
        parameters = operator(name).parameters
        operands = {each.name: operand(each, draw, specs) for each in parameters if each.is_operand}
        attributes = {each.name: attribute(each.kind, draw) for each in parameters if not each.is_operand}
        try:
            with bounded_calls(CALLS):
                results = Deriver()(Node(0, name, operands, attributes, ()), specs).results
        except MalformedError as error:
            assert len(str(error)) < 2000  # noqa: PT017
        else:
            assert all(spec is None or isinstance(spec, TensorSpec) for spec in results)
