"""The operators of the allow-list on the reference engine: slices and single examples give what the whole gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.admission import Deriver, read_graph
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.execution import Reference, execute
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Ref, Role
from tallystick.programs.inspection import Inspection
from tallystick.programs.operators.definition import operator
from tallystick.programs.slicing import subgraph, verification_slice

SHAPES = {
    "inputs.x": (4, 5, 6),
    "weights.query": (6, 6),
    "weights.key": (6, 6),
    "weights.out": (3, 6),
    "weights.bias": (3,),
}


def attention_graph(batch: int = 4) -> Graph:
    """One head of attention over 5 places, a linear layer, and the probability of each of 3 classes."""
    steps: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("aten.permute.default", {"self": "weights.query"}, {"dims": (1, 0)}),
        ("aten.matmul.default", {"self": "inputs.x", "other": "n0"}, {}),
        ("aten.permute.default", {"self": "weights.key"}, {"dims": (1, 0)}),
        ("aten.matmul.default", {"self": "inputs.x", "other": "n2"}, {}),
        ("aten.transpose.int", {"self": "n3"}, {"dim0": 1, "dim1": 2}),
        ("aten.bmm.default", {"self": "n1", "mat2": "n4"}, {}),
        ("aten._softmax.default", {"self": "n5"}, {"dim": -1, "half_to_float": False}),
        ("aten.bmm.default", {"self": "n6", "mat2": "inputs.x"}, {}),
        ("aten.mean.dim", {"self": "n7"}, {"dim": (1,), "keepdim": False, "dtype": None}),
        ("aten.gelu.default", {"self": "n8"}, {"approximate": "none"}),
        ("aten.linear.default", {"input": "n9", "weight": "weights.out", "bias": "weights.bias"}, {}),
        ("aten.view.default", {"self": "n10"}, {"size": (batch, 3, 1)}),
        ("aten._softmax.default", {"self": "n11"}, {"dim": 1, "half_to_float": False}),
    ]
    sources = [(name, (batch, *shape[1:]) if name == "inputs.x" else shape) for name, shape in SHAPES.items()]
    inputs = tuple(
        Input(name, Role.WEIGHT if name.startswith("weights") else Role.INPUT, TensorSpec("F32", shape))
        for name, shape in sources
    )
    specs = {each.name: each.spec for each in inputs}
    derive, nodes = Deriver(), []
    for number, (name, operands, attributes) in enumerate(steps):
        unchecked = Node(number, name, operands, attributes, ())
        results = derive(unchecked, specs).results
        nodes.append(replace(unchecked, results=results))
        specs |= {ref: spec for ref, spec in zip(nodes[-1].outputs, results, strict=True) if ref and spec}
    outputs = (Output("outputs.y", "n12"), Output("outputs.attention", "n6"))
    return Graph("aten", GraphForm.LOGICAL, inputs, (), tuple(nodes), outputs)


def tensors(seed: int = 0) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    return {name: Tensor.of(draw.normal(size=shape).astype(np.float32)) for name, shape in SHAPES.items()}


def reference(graph: Graph, bindings: Mapping[Ref, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.values() for name, tensor in execute(graph, bindings, Reference()).items()}


def test_it_passes_the_door() -> None:
    graph = attention_graph()
    assert read_graph(graph_bytes(graph)) == graph
    assert Inspection(graph).operators["aten.bmm.default"].nodes == 2


def test_a_slice_gives_the_values_of_the_whole() -> None:
    graph, held = attention_graph(), tensors()
    whole = reference(graph, held)
    front = subgraph(graph, range(7))
    assert reference(front, held)["outputs.attention"] == pytest.approx(whole["outputs.attention"], rel=1e-12)
    given = {"n6": Tensor.of(whole["outputs.attention"].astype(np.float32))}
    back = reference(verification_slice(graph, ["n6"], ["n12"]), held | given)["n12"]
    assert back == pytest.approx(whole["outputs.y"], rel=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_an_example_alone_gives_its_row(rows: int) -> None:
    from tallystick.programs.batching import slice_batch

    graph, held = attention_graph(), tensors()
    found = slice_batch(graph, ["inputs.x"], rows)
    assert found.graph == attention_graph(rows)
    whole = execute(graph, held, Reference())
    for start in range(5 - rows):
        alone = execute(found.graph, found.take(held, start), Reference())
        for name, expected in found.examples(whole, start).items():
            assert alone[name].values() == pytest.approx(expected.values(), rel=1e-12)


def test_a_mean_over_the_batch_is_refused() -> None:
    from tallystick.programs.batching import slice_batch

    graph = attention_graph()
    mean = Node(13, "aten.mean.dim", {"self": "n12"}, {"dim": (0,), "keepdim": False, "dtype": None}, ())
    results = Deriver()(mean, graph.specs()).results
    mixed = replace(graph, nodes=(*graph.nodes, replace(mean, results=results)))
    with pytest.raises(UsageError, match=r"node 13: aten\.mean\.dim"):
        slice_batch(mixed, ["inputs.x"])


@pytest.mark.parametrize(
    ("name", "operands", "attributes", "shapes"),
    [
        ("aten.view.default", {"self": "x"}, {"size": (-1, 6)}, {"x": (4, 5, 6)}),
        ("aten.view.default", {"self": "x"}, {"size": (20, 6)}, {"x": (4, 5, 6)}),
        ("aten.expand.default", {"self": "x", }, {"size": (4, 5, 6), "implicit": False}, {"x": (4, 1, 6)}),
        ("aten.cat.default", {"tensors": ("x", "x")}, {"dim": 1}, {"x": (4, 5)}),
        ("aten.cat.default", {"tensors": ("x", "x")}, {"dim": 0}, {"x": (4, 5)}),
        ("aten.transpose.int", {"self": "x"}, {"dim0": 0, "dim1": 1}, {"x": (4, 4)}),
        ("aten._softmax.default", {"self": "x"}, {"dim": 0, "half_to_float": False}, {"x": (4, 5)}),
        ("aten.mm.default", {"self": "x", "mat2": "x"}, {}, {"x": (4, 4)}),
        ("aten.slice.Tensor", {"self": "x"}, {"dim": 0, "start": 0, "end": 2, "step": 1}, {"x": (4, 5)}),
        ("aten.slice.Tensor", {"self": "x"}, {"dim": 1, "start": 0, "end": 4, "step": 1}, {"x": (4, 5)}),
        ("aten.repeat.default", {"self": "x"}, {"repeats": (4, 1)}, {"x": (4, 5)}),
        ("aten.cumsum.default", {"self": "x"}, {"dim": 0, "dtype": None}, {"x": (4, 5)}),
        ("aten.roll.default", {"self": "x"}, {"shifts": (1,), "dims": (0,)}, {"x": (4, 5)}),
    ],
)  # fmt: skip
def test_whatever_is_given_for_one_operator_is_right(
    name: str, operands: dict[str, Any], attributes: dict[str, Any], shapes: dict[str, tuple[int, ...]]
) -> None:
    """Not which of them can be cut, but that none is cut wrongly."""
    from tallystick.programs.batching import slice_batch

    kinds = {each.name for each in operator(name).parameters}
    attributes = {key: value for key, value in attributes.items() if key in kinds}
    inputs = tuple(Input(ref, Role.INPUT, TensorSpec("F32", shape)) for ref, shape in shapes.items())
    node = Node(0, name, operands, attributes, ())
    node = replace(node, results=Deriver()(node, {each.name: each.spec for each in inputs}).results)
    graph = Graph("aten", GraphForm.LOGICAL, inputs, (), (node,), (Output("y", "n0"),))
    draw = np.random.default_rng(1)
    held = {ref: Tensor.of(draw.normal(size=shape).astype(np.float32)) for ref, shape in shapes.items()}
    whole = execute(graph, held, Reference())
    try:
        found = slice_batch(graph, list(shapes))
    except UsageError as error:
        assert "node 0" in str(error)  # noqa: PT017
        return
    for start in range(4):
        alone = execute(found.graph, found.take(held, start), Reference())["y"]
        assert np.array_equal(alone.values(), found.examples(whole, start)["y"].values())
