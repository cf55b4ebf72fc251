"""The allow-list names operators, and nothing that draws, runs foreign code or depends on where it runs."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

import pytest

from tallystick.core.errors import MalformedError
from tallystick.programs.operators import aten, stablehlo, tally
from tallystick.programs.operators.definition import (
    ATTRIBUTE_KINDS,
    FAMILIES,
    HOMES,
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


def families_loaded_by(statement: str) -> set[str]:
    """The families that a fresh interpreter has loaded after `statement`, by the last name of their modules."""
    code = f"""import sys
from tallystick.programs.operators.definition import FAMILIES
from tallystick.programs.operators.definition import OPERATORS, operator
{statement}
print(*(name.rpartition(".")[2] for name in FAMILIES if name in sys.modules))"""
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_table_is_what_the_families_define() -> None:
    folders = [each.name for dialect in (aten, stablehlo, tally) for each in _modules(dialect)]
    described = {name: module.FAMILY.operators for name in folders if hasattr(module := import_module(name), "FAMILY")}
    assert described.keys() == FAMILIES.keys()
    assert {name: module for module, names in described.items() for name in names} == HOMES
    assert all(names.split() == sorted(names.split()) for names in FAMILIES.values())
    assert len(HOMES) == sum(map(len, described.values()))  # no name stands in two families


def _modules(package: ModuleType) -> Iterable[pkgutil.ModuleInfo]:
    return pkgutil.iter_modules(package.__path__, f"{package.__name__}.")


def test_an_operator_loads_its_family_and_no_other() -> None:
    assert families_loaded_by("list(OPERATORS), len(OPERATORS)") == set()
    assert families_loaded_by("operator('aten.linear.default')") == {"contraction"}
    assert families_loaded_by("operator('aten._softmax.default')") == {"activation"}
    assert families_loaded_by("OPERATORS.get('aten.rand.default')") == set()


def test_a_graph_is_checked_with_the_families_of_its_operators() -> None:
    made = """
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.core.tensors import TensorSpec
spec = TensorSpec("F32", (2, 2))
nodes = (
    Node(0, "aten.linear.default", {"input": "x", "weight": "x", "bias": None}, {}, (spec,)),
    Node(1, "aten.softmax.int", {"self": "n0"}, {"dim": 1, "dtype": None}, (spec,)),
)
graph = Graph("aten", GraphForm.LOGICAL, (Input("x", Role.INPUT, spec),), (), nodes, (Output("y", "n1"),))
assert read_graph(graph_bytes(graph)) == graph"""
    assert families_loaded_by(made) == {"activation", "contraction"}


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
