"""The allow-list names operators, and nothing that draws, runs foreign code or depends on where it runs."""

from __future__ import annotations

import pytest

from tallystick.errors import MalformedError
from tallystick.operators.definition import ATTRIBUTE_KINDS, TENSOR_KINDS, Operator
from tallystick.operators.registry import OPERATORS, operator


def test_an_operator_is_found_by_its_name() -> None:
    found = operator("aten.mm.default")
    assert isinstance(found, Operator)
    assert (found.name, found.dialect) == ("aten.mm.default", "aten")


@pytest.mark.parametrize(
    "name",
    [
        *("aten.bernoulli.p", "aten.rand.default", "aten.randn.default", "aten.normal_.default", "aten.add_.Tensor"),
        *("aten.mm", "mm.default", "aten.mm.out", "stablehlo.custom_call", "mylib.op.default", "", "a" * 10_000),
        *("aten.nonzero.default", "aten.masked_select.default", "aten.item.default", "__class__"),
    ],
)
def test_everything_else_is_refused(name: str) -> None:
    with pytest.raises(MalformedError, match="is not on the allow-list") as refusal:
        operator(name)
    assert len(str(refusal.value)) < 200


def test_names_are_sorted_and_of_three_dialects() -> None:
    assert list(OPERATORS) == sorted(OPERATORS)
    assert {each.dialect for each in OPERATORS.values()} == {"aten", "stablehlo", "tally"}
    assert all(name == each.name for name, each in OPERATORS.items())


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_says_in_one_line_what_it_means(name: str) -> None:
    meaning = operator(name).meaning
    assert 0 < len(meaning) <= 100
    assert "\n" not in meaning


@pytest.mark.parametrize("name", OPERATORS)
def test_parameters_have_known_kinds_and_their_own_names(name: str) -> None:
    parameters = operator(name).parameters
    assert len({each.name for each in parameters}) == len(parameters)
    for each in parameters:
        assert each.kind in TENSOR_KINDS | ATTRIBUTE_KINDS | {f"{kind}?" for kind in ATTRIBUTE_KINDS}


def test_no_parameter_says_where_an_operator_runs() -> None:
    placed = {"device", "layout", "memory_format", "pin_memory", "non_blocking", "generator"}
    assert not [name for name, each in OPERATORS.items() if placed & {parameter.name for parameter in each.parameters}]
