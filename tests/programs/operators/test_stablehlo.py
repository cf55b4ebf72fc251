"""Every StableHLO operator: refusals by its types, and one meaning in float64, in XLA and in IREE."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.admission import check_graph
from tallystick.programs.execution import Engine, Reference, execute
from tallystick.programs.graph import Graph, GraphForm, GraphLimits, Input, Node, Output, Role
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.definition import OPERATORS, operator
from tallystick.programs.operators.types import Types
from tallystick.programs.operators.values import Values
from tests.programs.operators.examples import Call, mapped, specs, tensor_of
from tests.programs.operators.examples_stablehlo import EXAMPLES, MALFORMED

CALLS = [each for calls in EXAMPLES.values() for each in calls]
STABLE = [each for each in CALLS if each.operator != "stablehlo.sort"]
REFUSED = [each for calls in MALFORMED.values() for each in calls]
REFERENCE = Values(NUMPY, "F64")
EXACT_DTYPES = frozenset({"BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"})
RELATIVE = {"F64": 1e-6, "F32": 2e-5, "F16": 2e-3, "BF16": 1.6e-2}


def together(calls: list[Call]) -> tuple[Graph, dict[str, Tensor]]:
    """One graph that holds every call as a node of its own, and its operands."""
    nodes, inputs, outputs, bindings = [], [], [], {}
    for number, each in enumerate(calls):
        known = operator(each.operator)
        operands: dict[str, Any] = {}
        for parameter in known.parameters:
            if parameter.is_operand:
                value = each.arguments[parameter.name]
                several = value if isinstance(value, tuple) else (value,)
                names = tuple(f"call.{number}.{parameter.name}.{i}" for i in range(len(several)))
                bindings |= dict(zip(names, map(tensor_of, several), strict=True))
                operands[parameter.name] = names if isinstance(value, tuple) else names[0]
        attributes = {each_.name: each.arguments[each_.name] for each_ in known.parameters if not each_.is_operand}
        results = known.read(Types(), specs(each.arguments))
        node = Node(number, each.operator, operands, attributes, results)
        nodes.append(node)
        outputs.extend(Output(f"result.{ref}", ref) for ref in node.outputs if ref is not None)
    inputs = [Input(name, Role.INPUT, TensorSpec.of(tensor)) for name, tensor in bindings.items()]
    return Graph("stablehlo", GraphForm.LOGICAL, tuple(inputs), (), tuple(nodes), tuple(outputs)), bindings


def computed(calls: list[Call], engine: Engine) -> dict[str, Tensor]:
    """The results of the calls in one engine, by call and result."""
    graph, bindings = together(calls)
    if hasattr(engine, "compile"):
        engine.compile(graph)
    return execute(graph, bindings, engine)


def iree() -> Engine:
    pytest.importorskip("iree.compiler")
    pytest.importorskip("jax")
    found: Engine = pytest.importorskip("tallystick.engines.iree").IreeEngine()
    return found


def check_close(found: Tensor, reference: Tensor, dtype: str, what: str) -> None:
    """Equal where numbers are exact, else within a small multiple of the unit of `dtype`."""
    ours: npt.NDArray[Any] = found.values()
    assert (found.dtype, found.shape) == (dtype, reference.shape)
    if dtype in EXACT_DTYPES:
        np.testing.assert_array_equal(ours, reference.array(), err_msg=what)
    else:
        unit = RELATIVE[dtype]
        np.testing.assert_allclose(ours, reference.array(), rtol=unit, atol=unit, err_msg=what)


def test_examples_hold_every_operator_and_every_refusal() -> None:
    names = {name for name in OPERATORS if name.startswith("stablehlo.")}
    assert EXAMPLES.keys() == names
    assert MALFORMED.keys() == names


def test_the_examples_are_a_graph_that_passes_the_door() -> None:
    check_graph(together(CALLS)[0], GraphLimits())


@pytest.mark.parametrize("each", REFUSED, ids=str)
def test_operands_that_do_not_fit_are_refused(each: Call) -> None:
    with pytest.raises(MalformedError):
        operator(each.operator).read(Types(), specs(each.arguments))


def check_agree(calls: list[Call], found: dict[str, Tensor]) -> None:
    expected, graph = computed(calls, Reference()), together(calls)[0]
    specs = graph.specs()
    for output in graph.outputs:
        number = int(output.value.removeprefix("n").partition(".")[0])
        check_close(found[output.name], expected[output.name], specs[output.value].dtype, str(calls[number]))


def xla() -> Engine:
    pytest.importorskip("jax")
    found: Engine = pytest.importorskip("tallystick.engines.jax.engine").JaxEngine()
    return found


def test_xla_agrees_with_the_reference_on_every_third_call() -> None:
    check_agree(CALLS[::3], computed(CALLS[::3], xla()))


@pytest.mark.slow
def test_xla_agrees_with_the_reference() -> None:
    check_agree(CALLS, computed(CALLS, xla()))


def test_iree_agrees_with_the_reference_on_every_seventh_call() -> None:
    calls = STABLE[::7]
    check_agree(calls, computed(calls, iree()))


@pytest.mark.slow
def test_iree_agrees_with_the_reference() -> None:
    check_agree(STABLE, computed(STABLE, iree()))


def test_iree_does_not_sort() -> None:
    [first, *_] = EXAMPLES["stablehlo.sort"]
    with pytest.raises(UnavailableError, match=r"stablehlo\.sort"):
        computed([first], iree())


def test_definitions_agree_with_the_reference_on_jax() -> None:
    """In the stated dtypes; the engine itself runs XLA's own operators."""
    pytest.importorskip("jax")
    programs = pytest.importorskip("tallystick.engines.jax.engine")
    jax = pytest.importorskip("jax")
    for each in [calls[0] for calls in EXAMPLES.values()][::3]:
        expected = operator(each.operator).read(REFERENCE, mapped(each.arguments, REFERENCE.load))
        with jax.enable_x64(True):
            found = operator(each.operator).read(programs.ALGEBRA, mapped(each.arguments, programs.ALGEBRA.load))
            tensors = [programs.ALGEBRA.unload(value) for value in found]
        for tensor, wanted in zip(tensors, expected, strict=True):
            check_close(tensor, REFERENCE.unload(wanted), wanted.dtype, str(each))
