"""The allow-list names operators, and nothing that draws, runs foreign code or depends on where it runs."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

import pytest

from tallystick.core.errors import MalformedError
from tallystick.programs.operators import aten, stablehlo, tally
from tallystick.programs.operators.definition import (
    ATTRIBUTE_KINDS,
    FAMILIES,
    OPERATORS,
    TENSOR_KINDS,
    Operator,
    operator,
)


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


def test_the_allow_list_is_what_the_families_define() -> None:
    folders = [each.name for dialect in (aten, stablehlo, tally) for each in _modules(dialect)]
    described = {name: module.FAMILY.operators for name in folders if hasattr(module := import_module(name), "FAMILY")}
    assert described.keys() == set(FAMILIES)
    assert {name: each for operators in described.values() for name, each in operators.items()} == OPERATORS
    assert len(OPERATORS) == sum(map(len, described.values()))  # no name stands in two families


def _modules(package: ModuleType) -> Iterable[pkgutil.ModuleInfo]:
    return pkgutil.iter_modules(package.__path__, f"{package.__name__}.")


def test_names_are_sorted_and_of_three_dialects() -> None:
    assert list(OPERATORS) == sorted(OPERATORS)
    assert {each.dialect for each in OPERATORS.values()} == {"aten", "stablehlo", "tally"}
    assert all(name == each.name for name, each in OPERATORS.items())


def test_an_operator_says_in_one_line_what_it_means() -> None:
    meanings = {name: operator(name).meaning for name in OPERATORS}
    assert {name: text for name, text in meanings.items() if not 0 < len(text) <= 100 or "\n" in text} == {}


def test_parameters_have_known_kinds_and_their_own_names() -> None:
    known = TENSOR_KINDS | ATTRIBUTE_KINDS | {f"{kind}?" for kind in ATTRIBUTE_KINDS}
    for name in OPERATORS:
        parameters = operator(name).parameters
        assert len({each.name for each in parameters}) == len(parameters), name
        assert {each.kind for each in parameters} <= known, name


def test_no_parameter_says_where_an_operator_runs() -> None:
    placed = {"device", "layout", "memory_format", "pin_memory", "non_blocking", "generator"}
    assert not [name for name, each in OPERATORS.items() if placed & {parameter.name for parameter in each.parameters}]
