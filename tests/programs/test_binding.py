"""What is bound, what lacks, and what can be replayed."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import Tensor
from tallystick.programs.execution import execute
from tallystick.programs.slicing import Coverage, bind


@pytest.fixture(scope="module")
def values(small: Any) -> dict[str, Tensor]:
    return small.values(small.graph(), small.tensors())


def without(values: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in values.items() if name not in names}


def only(values: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: values[name] for name in names}


def test_coverage(small: Any, values: dict[str, Tensor]) -> None:
    graph = small.graph()
    assert bind(graph, values).coverage is Coverage.FULL
    assert bind(graph, without(values, "n5")).coverage is Coverage.STATE
    assert bind(graph, small.tensors()).coverage is Coverage.STATE
    assert bind(graph, only(values, "inputs.x", "n12", "n3")).coverage is Coverage.ENDS
    assert bind(graph, only(values, "inputs.x", "n12")).coverage is Coverage.PARTIAL
    assert bind(graph, {}).coverage is Coverage.PARTIAL


def test_outputs_are_bound_by_their_names(small: Any, values: dict[str, Tensor]) -> None:
    graph = small.graph()
    outputs = {"outputs.y": values["n12"], "outputs.hidden": values["n3"]}
    assert bind(graph, only(values, "inputs.x"), outputs).coverage is Coverage.ENDS
    assert bind(graph, only(values, "n12"), outputs).values.keys() == {"n12", "n3"}
    with pytest.raises(MalformedError, match="another tensor than its value n12"):
        bind(graph, {"n12": Tensor("F32", (4, 2), bytes(32))}, outputs)
    with pytest.raises(MalformedError, match=r"no output 'outputs\.z'"):
        bind(graph, {}, {"outputs.z": values["n12"]})


def test_every_bound_value_is_checked(small: Any, values: dict[str, Tensor]) -> None:
    graph = small.graph()
    for wrong, reason in (
        ({"n99": values["n5"]}, "no value 'n99'"),
        ({"n5": values["n6"]}, r"n5 is F32\[4,4\], and bound to F32\[4,2\]"),
        ({"n5": Tensor("I32", (4, 4), values["n5"].data)}, r"bound to I32\[4,4\]"),
        ({"shift": Tensor("F32", (4,), bytes(16))}, "does not have|do not have"),
    ):
        with pytest.raises(MalformedError, match=reason):
            bind(graph, wrong)


def test_what_lacks_for_a_replay(small: Any, values: dict[str, Tensor]) -> None:
    graph = small.graph()
    nothing = bind(graph, {})
    assert nothing.missing([5]) == ("weights.first", "weights.second", "inputs.x", "shift")
    assert nothing.missing([1]) == ("weights.first", "inputs.x", "shift")
    assert bind(graph, only(values, "n1")).missing([5]) == ("weights.second",)
    assert bind(graph, only(values, "n1", "n4")).missing([5]) == ()
    assert bind(graph, small.tensors()).missing([node.number for node in graph.nodes]) == ()
    with pytest.raises(UsageError, match="no node 2"):
        nothing.missing([2])


def test_what_can_be_replayed(small: Any, values: dict[str, Tensor]) -> None:
    graph = small.graph()
    assert bind(graph, {}).replayable() == ()
    assert bind(graph, small.tensors()).replayable() == (graph,)
    parts = bind(graph, only(values, "n1", "n6", "n6.1")).replayable()
    assert [[node.number for node in part.nodes] for part in parts] == [[3], [7, 8, 9, 10, 12]]
    separate = bind(graph, only(values, "n3", "weights.second", "n9")).replayable()
    assert [[node.number for node in part.nodes] for part in separate] == [[4], [10, 12]]


def test_what_can_be_replayed_runs_and_agrees(small: Any, values: dict[str, Tensor]) -> None:
    binding = bind(small.graph(), only(values, "n1", "n3", "n6", "n6.1", "n9"))
    parts = binding.replayable()
    assert [binding.compared(part) for part in parts] == [("n3",), ("n9",)]
    for part in parts:
        for name, tensor in execute(part, binding.values, small.engine()).items():
            ref = next(output.value for output in part.outputs if output.name == name)
            assert bytes(tensor.data) == bytes(values[ref].data)
