"""Schemas are read as PyTorch writes them, and attributes are checked against their kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.definition import Dtype, Exactness, Family, Ints, Operator, Parameter, Scalar


def test_a_signature_is_a_schema() -> None:
    family = Family("tally")

    @family.moves("x", "x", other="Scalar?")
    def define(
        a: Algebra[V],
        self: V,
        other: V | Scalar | None,
        indices: Sequence[V | None],
        dims: Ints = (0, 1),
        dtype: Dtype | None = None,
    ) -> V:
        return self

    assert family.operators["tally.x"].parameters == (
        Parameter("self", "Tensor"),
        Parameter("other", "Scalar?"),
        Parameter("indices", "Tensor?[]"),
        Parameter("dims", "int[]", (0, 1)),
        Parameter("dtype", "dtype?", None),
    )


def plain(a: Algebra[V], x: V) -> V:
    return x


def of_a_dict(a: Algebra[V], x: dict[str, V]) -> V:
    return x["x"]


def tensor_or_number(a: Algebra[V], x: V | Scalar) -> V:
    return a.full((), x, "F32") if isinstance(x, bool | int | float) else x


@pytest.mark.parametrize(
    ("define", "kinds", "complaint"),
    [
        (of_a_dict, {}, "is of no known kind"),
        (tensor_or_number, {}, "is of no known kind"),
        (plain, {"y": "Scalar"}, "lacks some of"),
    ],
)
def test_what_is_no_schema_is_a_mistake_of_ours(define: Any, kinds: dict[str, str], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        Family("tally").moves("x", "x", **kinds)(define)
    Family("tally").moves("x", "x")(plain)
    Family("tally").moves("x", "x", x="Tensor")(tensor_or_number)


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
    family = Family("tally")
    family.moves("first second", "x")(plain)
    assert sorted(family.operators) == ["tally.first", "tally.second"]
    assert family.operators["tally.second"].read(None, {"x": 3}) == (3,)  # type: ignore[arg-type]


def test_each_name_may_have_kinds_of_its_own() -> None:
    family = Family("tally")
    family.moves("first second", "x", x="Tensor Scalar")(tensor_or_number)
    kinds = [family.operators[name].parameters[0].kind for name in ("tally.first", "tally.second")]
    assert kinds == ["Tensor", "Scalar"]


def test_nothing_is_described_twice() -> None:
    family = Family("tally")
    family.moves("first", "x")(plain)
    with pytest.raises(AssertionError, match="described twice"):
        family.moves("first", "")(plain)


def test_results_are_a_tuple_whatever_a_definition_returns() -> None:
    def read(result: Any) -> tuple[Any, ...]:
        return Operator("tally.x", (), "x", Exactness.MOVES, lambda a: result).read(None, {})  # type: ignore[arg-type]

    assert read(3) == (3,)
    assert read((3, None)) == (3, None)
    assert read(()) == ()
