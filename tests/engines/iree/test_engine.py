"""IREE as an engine: a training step and operators of other dialects, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("iree.compiler")

import jax.numpy as jnp

from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.iree import IreeEngine, compiled
from tallystick.engines.jax.capture import CapturedFunction, capture
from tallystick.engines.jax.emission import graph_function, module_text
from tallystick.engines.jax.engine import JaxEngine
from tallystick.programs.execution import Reference, execute
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.types import Types
from tests.engines.jax.programs import RESULTS, ROLES, step_arguments, training_step


@pytest.fixture(scope="module")
def step() -> CapturedFunction:
    return capture(training_step, *step_arguments(), roles=ROLES, results=RESULTS)


def check_agree(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 2e-6) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor.values(), expected[name].array(), rtol=1e-4, atol=tolerance, err_msg=name)


def test_a_training_step_as_one_program_agrees_with_the_reference(step: CapturedFunction) -> None:
    check_agree(IreeEngine().run(step.graph, step.bindings), execute(step.graph, step.bindings, Reference()))


@pytest.mark.slow
def test_a_training_step_node_by_node_agrees_with_the_reference(step: CapturedFunction) -> None:
    engine = IreeEngine()
    engine.compile(step.graph)
    check_agree(execute(step.graph, step.bindings, engine), execute(step.graph, step.bindings, Reference()))


def test_a_forward_pass_as_one_program_agrees_with_the_reference() -> None:
    captured = capture(lambda x, y: jnp.tanh(x @ y) + 1, jnp.ones((3, 4)) * 0.3, jnp.ones((4, 2)) * 0.2)
    found = IreeEngine().run(captured.graph, captured.bindings)
    check_agree(found, execute(captured.graph, captured.bindings, Reference()))


def test_the_same_text_gives_the_same_bytes(step: CapturedFunction) -> None:
    captured = capture(lambda x: x + 1, jnp.ones(3))
    text = module_text([graph_function(captured.graph)])
    assert compiled(text, "it") is compiled(text, "it")


def test_what_does_not_compile_is_refused_by_its_name() -> None:
    with pytest.raises(UnavailableError, match="IREE does not compile nonsense"):
        compiled("module { func.func @main() -> tensor<1xf32> }  nonsense", "nonsense")


def perceptron() -> tuple[Graph, dict[str, Tensor]]:
    """An ATen graph: a linear layer, GELU, layer normalization, softmax."""
    generator = np.random.default_rng(0)
    shapes = {"inputs.x": (4, 6), "weights.w": (8, 6), "weights.b": (8,), "weights.scale": (8,)}
    bindings = {name: Tensor.of(generator.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}
    specs = {name: TensorSpec.of(tensor) for name, tensor in bindings.items()}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("aten.linear.default", {"input": "inputs.x", "weight": "weights.w", "bias": "weights.b"}),
        ("aten.gelu.default", {"self": "n0", "approximate": "none"}),
        (
            "aten.layer_norm.default",
            {
                "input": "n1",
                "normalized_shape": (8,),
                "weight": "weights.scale",
                "bias": "weights.b",
                "eps": 1e-5,
                "cudnn_enable": True,
            },
        ),
        ("aten._softmax.default", {"self": "n2", "dim": -1, "half_to_float": False}),
    ]
    nodes = []
    for number, (name, given) in enumerate(calls):
        known = operator(name)
        operands = {each.name: given[each.name] for each in known.parameters if each.is_operand}
        attributes = {each.name: given[each.name] for each in known.parameters if not each.is_operand}
        values = {key: None if ref is None else specs[ref] for key, ref in operands.items()}
        results = known.read(Types(), values | attributes)
        nodes.append(Node(number, name, operands, attributes, results))
        specs[f"n{number}"] = results[0]
    inputs = tuple(Input(name, Role.INPUT, specs[name]) for name in sorted(bindings))
    return Graph("aten", GraphForm.LOGICAL, inputs, (), tuple(nodes), (Output("outputs.0", "n3"),)), bindings


def test_an_aten_graph_agrees_on_all_engines() -> None:
    graph, bindings = perceptron()
    expected = execute(graph, bindings, Reference())
    iree = IreeEngine()
    iree.compile(graph)
    for engine in (JaxEngine(), iree):
        check_agree(execute(graph, bindings, engine), expected)


def test_a_place_outside_of_the_tensor_is_not_written() -> None:
    captured = capture(lambda x, i: x.at[i].add(1.0), jnp.zeros(4), jnp.array([1, 99], jnp.int32))
    for found in (
        execute(captured.graph, captured.bindings, IreeEngine()),
        IreeEngine().run(captured.graph, captured.bindings),
    ):
        np.testing.assert_array_equal(found["outputs.0"].array(), [0, 1, 0, 0])
