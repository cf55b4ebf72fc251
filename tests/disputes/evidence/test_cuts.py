"""What crosses a cut: everything that a later operator needs is opened in some round, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tallystick.disputes.evidence.view import Cuts  # noqa: E402
from tallystick.programs.graph import Graph, Ref  # noqa: E402
from tallystick.programs.slicing import verification_slice  # noqa: E402
from tests.support.attacks.disputes.scene import Scene  # noqa: E402
from tests.support.rehearsal import children_of  # noqa: E402


@pytest.fixture(scope="module", params=["step", "call"])
def graph(request: pytest.FixtureRequest, scene: Scene) -> Graph:
    return scene.graph if request.param == "step" else scene.recorded.graph


def sources_of(graph: Graph) -> set[Ref]:
    return {each.name for each in graph.sources}


def test_crossing_values_are_given_before_and_needed_after(graph: Graph) -> None:
    cuts = Cuts(graph)
    returned = {output.value for output in graph.outputs}
    for place in range(0, len(graph.nodes), 7):
        given = {ref for node in graph.nodes[: place + 1] for ref in node.outputs if ref}
        read = {ref for node in graph.nodes[place + 1 :] for ref in node.refs} | returned
        assert set(cuts.crossing(0, place)) == given & read


@pytest.mark.parametrize("ways", [2, 5, 16, 32])
def test_every_child_of_every_round_can_be_executed_from_what_was_opened(graph: Graph, ways: int) -> None:
    chooser, cuts = random.Random(ways), Cuts(graph)
    opened = sources_of(graph) | {output.value for output in graph.outputs}
    low, high = 0, len(graph.nodes)
    while high - low > 1:
        children = children_of(low, high, ways)
        opened |= set(cuts.opened_at(low, [end - 1 for _, end in children[:-1]]))
        for child in children:
            part = cuts.child(*child)
            if part is not None:
                assert {each.name for each in part.sources} <= opened
                assert {output.value for output in part.outputs} <= opened
        low, high = chooser.choice(children)
    node = graph.nodes[low]
    assert set(node.refs) <= opened


def test_a_child_is_the_slice_of_the_graph_between_its_cuts(graph: Graph) -> None:
    cuts = Cuts(graph)
    for low, high in (*children_of(0, len(graph.nodes), 16), (5, 6), (7, 40)):
        part, wanted = cuts.child(low, high), cuts.crossing(low, high - 1)
        before = [ref for node in graph.nodes[:low] for ref in node.outputs if ref is not None]
        if part is not None:
            same = verification_slice(graph, before, wanted)
            assert (part.nodes, part.outputs, part.form) == (same.nodes, same.outputs, same.form)
            assert set(part.sources) == set(same.sources)


def test_the_children_of_a_range_are_its_operators_once_each(graph: Graph) -> None:
    cuts, found = Cuts(graph), []
    for child in children_of(0, len(graph.nodes), 16):
        part: Any = cuts.child(*child)
        found += [] if part is None else [node.number for node in part.nodes]
    assert len(found) == len(set(found))
    needed = {ref for node in graph.nodes for ref in node.refs} | {output.value for output in graph.outputs}
    live = {node.number for node in graph.nodes if needed.intersection(filter(None, node.outputs))}
    assert live <= set(found)
