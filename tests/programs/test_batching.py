"""One example of a batch, and why some graphs have none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor
from tallystick.programs.batching import separable, slice_batch
from tallystick.programs.execution import execute
from tallystick.programs.graph import Graph, GraphForm, Input, Output, Role


def bytes_of(tensors: dict[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (each.dtype, each.shape, bytes(each.data)) for name, each in tensors.items()}


def one_node(small: Any, node: Any, **inputs: str) -> Graph:
    sources = tuple(Input(name, Role.INPUT, small.spec(text)) for name, text in inputs.items())
    return Graph("aten", GraphForm.LOGICAL, sources, (), (node,), (Output("y", f"n{node.number}"),))


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_the_rewritten_graph_is_that_of_a_smaller_batch(small: Any, rows: int) -> None:
    found = slice_batch(small.graph(4), ["inputs.x"], rows, small.find)
    assert found.graph == small.graph(rows)
    assert (found.size, found.rows, found.inputs) == (4, rows, ("inputs.x",))
    assert found.outputs == {"outputs.y": 0, "outputs.hidden": 0}


@pytest.mark.parametrize("rows", [1, 2])
def test_every_example_alone_gives_its_row_of_the_batch(small: Any, rows: int) -> None:
    graph, tensors = small.graph(4), small.tensors(4)
    whole = execute(graph, tensors, small.engine())
    found = slice_batch(graph, ["inputs.x"], rows, small.find)
    for start in range(5 - rows):
        alone = execute(found.graph, found.take(tensors, start), small.engine())
        expected = found.examples(whole, start)
        assert alone.keys() == expected.keys()
        for name, tensor in alone.items():
            assert tensor.values() == pytest.approx(expected[name].values(), rel=1e-6)


def test_a_batch_is_split_into_its_examples(small: Any) -> None:
    graph, tensors = small.graph(4), small.tensors(4)
    found = slice_batch(graph, ["inputs.x"], 2, small.find)
    parts = found.split(tensors)
    joined = b"".join(bytes(part["inputs.x"].data) for part in parts)
    assert (len(parts), joined) == (2, bytes(tensors["inputs.x"].data))
    assert all(part["shift"] is tensors["shift"] for part in parts)
    with pytest.raises(UsageError, match="does not split into parts of 3"):
        slice_batch(graph, ["inputs.x"], 3, small.find).split(tensors)


def test_a_sum_over_the_batch_is_refused(small: Any) -> None:
    graph = small.graph(4)
    mixed = replace(graph.nodes[9], attributes={"dim": (0,), "keepdim": False}, results=(small.spec("F32[2,2]"),))
    nodes = (*graph.nodes[:9], mixed)
    with pytest.raises(UsageError, match=r"node 10: aten\.sum\.dim_IntList"):
        slice_batch(replace(graph, nodes=nodes, outputs=()), ["inputs.x"], 1, small.find)
    assert slice_batch(replace(graph, nodes=graph.nodes[:10], outputs=()), ["inputs.x"], 1, small.find)


@pytest.mark.parametrize(
    ("operator", "result", "attributes"),
    [
        ("aten.view.default", "F32[12]", {"size": (12,)}),
        ("aten.view.default", "F32[4,3,1]", {"size": (4, 3, 1)}),
        ("aten.view.default", "F32[2,2,3]", {"size": (2, 2, 3)}),
        ("aten.view.default", "F32[3,4]", {"size": (3, 4)}),
        ("aten.split.Tensor", "F32[2,3] F32[2,3]", {"split_size": 2, "dim": 0}),
        ("aten.split.Tensor", "F32[4,1] F32[4,1] F32[4,1]", {"split_size": 1, "dim": 1}),
        ("aten.sum.dim_IntList", "F32[4]", {"dim": (1,), "keepdim": False}),
        ("aten.sum.dim_IntList", "F32[]", {"dim": None, "keepdim": False}),
    ],
)
def test_a_slice_is_given_only_where_it_is_right(
    small: Any, operator: str, result: str, attributes: dict[str, Any]
) -> None:
    graph = one_node(small, small.node(0, operator, result, ("x",), **attributes), x="F32[4,3]")
    tensors = {"x": small.tensors(4)["inputs.x"]}
    whole = execute(graph, tensors, small.engine())
    try:
        found = slice_batch(graph, ["x"], 1, small.find)
    except UsageError:
        assert attributes in ({"size": (2, 2, 3)}, {"size": (3, 4)}, {"split_size": 2, "dim": 0},
                              {"dim": None, "keepdim": False}, {"size": (12,)})  # fmt: skip
        return
    for start in range(4):
        alone = execute(found.graph, found.take(tensors, start), small.engine())
        assert bytes_of(alone) == bytes_of(found.examples(whole, start))


def test_what_depends_on_the_place_in_the_batch_is_refused(small: Any) -> None:
    places = small.node(0, "aten.arange.default", "F32[4]", (), end=4, dtype="F32")
    added = small.node(1, "aten.add.Tensor", "F32[4]", ("x", "n0"), alpha=1)
    graph = one_node(small, places, x="F32[4]")
    graph = replace(graph, nodes=(places, added), outputs=(Output("y", "n1"),))
    with pytest.raises(UsageError, match="node 1"):
        slice_batch(graph, ["x"], 1, small.find)


def test_batches_that_make_no_sense(small: Any) -> None:
    graph = small.graph(4)
    for batched, rows, reason in (
        (["inputs.z"], 1, "no input with a batch axis"),
        (["shift"], 1, "no input with a batch axis"),
        ([], 1, "0 sizes of the batch"),
        (["inputs.x", "weights.first"], 1, "2 sizes of the batch"),
        (["inputs.x"], 0, "0 examples of a batch of 4"),
        (["inputs.x"], 5, "5 examples of a batch of 4"),
    ):
        with pytest.raises(UsageError, match=reason):
            slice_batch(graph, batched, rows, small.find)
    with pytest.raises(UsageError, match="no 1 examples from 4 on"):
        slice_batch(graph, ["inputs.x"], 1, small.find).take(small.tensors(4), 4)


def test_the_part_up_to_the_first_node_that_mixes_examples(small: Any) -> None:
    graph = small.graph(4)
    mixed = replace(graph.nodes[9], attributes={"dim": (0,), "keepdim": False}, results=(small.spec("F32[2,2]"),))
    part = separable(replace(graph, nodes=(*graph.nodes[:9], mixed), outputs=()), ["inputs.x"], small.find)
    assert [node.number for node in part.nodes] == [node.number for node in graph.nodes[:9]]
    assert slice_batch(part, ["inputs.x"], 1, small.find)
    with pytest.raises(UsageError, match="no operator reads the batch"):
        separable(replace(graph, nodes=(), outputs=()), ["inputs.x"], small.find)
