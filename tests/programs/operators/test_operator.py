"""Schemas are read as PyTorch writes them, and attributes are checked against their kinds."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.definition import Exactness, Family, Operator, Parameter, parse_parameters


def test_a_schema_is_read() -> None:
    assert parse_parameters(
        "Tensor self, Tensor?[] indices, int[] dims=[0, 1], *, Scalar alpha=1, dtype? dtype=None"
    ) == (
        Parameter("self", "Tensor"),
        Parameter("indices", "Tensor?[]"),
        Parameter("dims", "int[]", "[0, 1]"),
        Parameter("alpha", "Scalar", "1"),
        Parameter("dtype", "dtype?", "None"),
    )
    assert parse_parameters("") == ()


@pytest.mark.parametrize("text", ["Tensor", "Tensor self other", "int 3x!"])
def test_what_is_no_schema_is_a_mistake_of_ours(text: str) -> None:
    with pytest.raises(AssertionError):
        parse_parameters(text)


GOOD: list[tuple[str, Any]] = [
    ("int", -3),
    ("int", 2**53 - 1),
    ("int[]", ()),
    ("int[]", (1, 2)),
    ("int[]?", None),
    ("float", 1.0),
    ("float", float("nan")),
    ("float?", None),
    ("bool", True),
    ("bool[]", (True, False)),
    ("Scalar", 1),
    ("Scalar", 1.5),
    ("Scalar", False),
    ("str", "mean"),
    ("dtype", "BF16"),
    ("dtype?", None),
]
BAD: list[tuple[str, Any]] = [
    ("int", True),
    ("int", 1.0),
    ("int", 2**53),
    ("int", None),
    ("int[]", [1, 2]),
    ("int[]", (1, None)),
    ("int[]", 3),
    ("float", 1),
    ("bool", 1),
    ("bool[]", (1,)),
    ("Scalar", "1"),
    ("Scalar", 2**53),
    ("str", 3),
    ("dtype", "float32"),
    ("dtype", ("F32",)),
    ("dtype?", ""),
]


@pytest.mark.parametrize(("kind", "value"), GOOD)
def test_an_attribute_of_its_kind_is_accepted(kind: str, value: Any) -> None:
    Parameter("p", kind).check(value)


@pytest.mark.parametrize(("kind", "value"), BAD)
def test_an_attribute_of_another_kind_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(MalformedError, match=r"^p is "):
        Parameter("p", kind).check(value)


def test_one_definition_may_have_several_names() -> None:
    family = Family()

    @family.operator("tally.first", "Tensor x", "x", Exactness.MOVES)
    @family.operator("tally.second", "Tensor x", "x", Exactness.MOVES)
    def same(a: Any, x: Any) -> Any:
        return x

    assert sorted(family.operators) == ["tally.first", "tally.second"]
    assert family.operators["tally.second"].read(None, {"x": 3}) == (3,)  # type: ignore[arg-type]


def test_nothing_is_described_twice() -> None:
    family = Family()
    family.operator("tally.first", "Tensor x", "x", Exactness.MOVES)(lambda a, x: x)
    with pytest.raises(AssertionError, match="described twice"):
        family.operator("tally.first", "", "", Exactness.MOVES)(lambda a: None)


def test_results_are_a_tuple_whatever_a_definition_returns() -> None:
    def read(result: Any) -> tuple[Any, ...]:
        return Operator("tally.x", (), "x", Exactness.MOVES, lambda a: result).read(None, {})  # type: ignore[arg-type]

    assert read(3) == (3,)
    assert read((3, None)) == (3, None)
    assert read(()) == ()
