"""A slice of a graph is a graph, and executing it gives what the whole graph gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor
from tallystick.programs.admission import check_graph, read_graph
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.execution import execute
from tallystick.programs.graph import Graph, GraphForm, GraphLimits, Output, Role
from tallystick.programs.slicing import ancestors, between, descendants, subgraph, verification_slice


def same(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and bytes(first.data) == bytes(second.data)


def check_slice(small: Any, graph: Graph, part: Graph) -> None:
    """It passes the door, and computes what the whole graph computes."""
    assert read_graph(graph_bytes(part), find=small.find) == part
    values = small.values(graph, small.tensors())
    engine = small.engine()
    for name, tensor in execute(part, values, engine).items():
        ref = next(output.value for output in part.outputs if output.name == name)
        assert same(tensor, values[ref])
    assert engine.ran == [node.number for node in part.nodes]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=st.sets(st.sampled_from([0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 12])))
def test_any_set_of_nodes_is_a_graph(small: Any, numbers: set[int]) -> None:
    graph = small.graph()
    part = subgraph(graph, numbers)
    assert {node.number for node in part.nodes} == numbers
    check_slice(small, graph, part)


def test_the_slice_of_all_nodes_is_the_graph(small: Any) -> None:
    graph = small.graph()
    assert subgraph(graph, [node.number for node in graph.nodes]) == graph


def test_a_slice_has_cut_values_for_inputs_and_what_leaves_it_for_outputs(small: Any) -> None:
    part = subgraph(small.graph(), [3, 4, 6])
    assert [(each.name, each.role) for each in part.inputs] == [
        ("weights.second", Role.WEIGHT),
        ("n1", Role.CUT),
        ("n5", Role.CUT),
    ]
    assert [(each.name, each.value) for each in part.outputs] == [
        ("outputs.hidden", "n3"),
        ("n4", "n4"),
        ("n6", "n6"),
        ("n6.1", "n6.1"),
    ]
    assert part.constants == ()
    assert subgraph(small.graph(), [1]).constants == small.graph().constants


def test_a_slice_of_a_slice_is_a_slice(small: Any) -> None:
    graph = small.graph()
    inner = subgraph(subgraph(graph, [3, 4, 5, 6]), [4, 5])
    assert inner.nodes == subgraph(graph, [4, 5]).nodes
    check_slice(small, graph, inner)


def test_slices_in_turn_give_the_whole(small: Any) -> None:
    graph, tensors = small.graph(), small.tensors()
    values: dict[str, Tensor] = dict(tensors)
    for numbers in ([0, 1, 3], [4, 5, 6], [7, 8, 9, 10, 12]):
        part = subgraph(graph, numbers)
        found = execute(part, values, small.engine())
        values |= {output.value: found[output.name] for output in part.outputs}
    whole = execute(graph, tensors, small.engine())
    assert all(same(values[output.value], whole[output.name]) for output in graph.outputs)


def test_up_and_down(small: Any) -> None:
    graph = small.graph()
    assert ancestors(graph, [5]) == {0, 1, 3, 4, 5}
    assert descendants(graph, [7]) == {7, 8, 9, 10, 12}
    assert ancestors(graph, []) == set()


def test_all_paths_between_two_sets(small: Any) -> None:
    graph = small.graph()
    assert [node.number for node in between(graph, [1], [5]).nodes] == [1, 3, 4, 5]
    assert [node.number for node in between(graph, [3], [5]).nodes] == [3, 4, 5]
    check_slice(small, graph, between(graph, [1, 4], [6, 8]))
    with pytest.raises(UsageError, match="no path"):
        between(graph, [5], [1])
    with pytest.raises(UsageError, match="no node 2"):
        between(graph, [2], [5])


def test_a_verification_slice_computes_what_is_wanted_from_what_is_given(small: Any) -> None:
    graph = small.graph()
    part = verification_slice(graph, ["n1"], ["n5"])
    assert [node.number for node in part.nodes] == [3, 4, 5]
    assert [each.name for each in part.inputs] == ["weights.second", "n1"]
    assert part.outputs == (Output("n5", "n5"),)
    assert part.form is GraphForm.VERIFICATION
    check_slice(small, graph, part)


def test_a_node_that_gives_a_cut_value_and_a_needed_one_is_computed(small: Any) -> None:
    part = verification_slice(small.graph(), ["n6", "n5"], ["n8"])
    assert [node.number for node in part.nodes] == [6, 7, 8]
    assert [each.name for each in part.inputs] == ["n5"]
    check_slice(small, small.graph(), part)


def test_cuts_that_make_no_sense(small: Any) -> None:
    graph = small.graph()
    for given_values, wanted, reason in (
        (["n2"], ["n5"], "no value n2"),
        (["n1"], ["n5.1"], "no value n5.1"),
        (["n5"], ["n5"], "nothing has to be computed"),
        ([], ["inputs.x"], "nothing has to be computed"),
    ):
        with pytest.raises(UsageError, match=reason):
            verification_slice(graph, given_values, wanted)
    check_graph(verification_slice(graph, [], ["n0"]), GraphLimits(), small.find)
