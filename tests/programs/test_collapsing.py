"""Large drawings: one box per module, in an order without circles."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree

import pytest

from tallystick.core.errors import UsageError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.drawing import BOXES_WANTED, NODES_EASY, collapse, draw_dot, draw_svg, shortened
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role

SPEC = TensorSpec("F32", (2,))


def chain(count: int) -> Graph:
    """Nodes that each read the one before."""
    nodes = tuple(
        Node(i, "aten.neg.default", {"self": f"n{i - 1}" if i else "inputs.x"}, {}, (SPEC,)) for i in range(count)
    )
    return Graph("aten", GraphForm.LOGICAL, (Input("inputs.x", Role.INPUT, SPEC),), (), nodes, (Output("y", "n0"),))


def titles(graph: Graph, paths: Mapping[int, str], depth: int) -> list[tuple[str, int]]:
    return [(box.title, len(box.nodes)) for box in collapse(graph, paths, depth).boxes]


def test_a_path_is_cut_after_its_phase() -> None:
    assert shortened("backward of model.layers.0.mlp", 2) == "backward of model.layers"
    assert shortened("model.layers.0", 3) == "model.layers.0"
    assert shortened("gradient norm", 1) == "gradient norm"
    assert shortened("", 3) == "no module"


def test_nodes_of_one_module_share_a_box_with_the_arrows_between() -> None:
    paths = {0: "model.a", 1: "model.a", 2: "model.b", 3: "backward of model.b"}
    assert titles(chain(4), paths, 2) == [("model.a", 2), ("model.b", 1), ("backward of model.b", 1)]
    assert titles(chain(4), paths, 1) == [("model", 3), ("backward of model", 1)]
    found = collapse(chain(4), paths, 2)
    assert found.arrows == ((0, 1), (1, 2))
    assert found.readers == {"inputs.x": (0,)}


def test_a_module_that_runs_around_its_part_gets_a_second_box() -> None:
    paths = {0: "layer", 1: "layer.part", 2: "layer", 3: "layer.part", 4: "layer"}
    found = collapse(chain(5), paths, 2)
    assert [box.title for box in found.boxes] == ["layer", "layer.part", "layer", "layer.part", "layer"]
    assert all(a < b for a, b in found.arrows)
    assert titles(chain(5), paths, 1) == [("layer", 5)]


def test_a_large_graph_is_drawn_by_modules_as_fine_as_is_easy_to_read() -> None:
    graph = chain(NODES_EASY + 50)
    paths = {i: f"model.layers.{i // 20}.part{i % 20 // 10}.op{i}" for i in range(len(graph.nodes))}
    drawn = draw_svg(graph, modules=paths)
    assert "model.layers.3.part1<" in drawn
    assert "10 nodes" in drawn
    assert "op55" not in drawn
    ElementTree.fromstring(drawn)
    assert len(collapse(graph, paths).boxes) <= BOXES_WANTED
    assert '"box 1"' in draw_dot(graph, modules=paths, depth=3)
    assert "n199 aten.neg" in draw_svg(graph, modules=paths, depth=0)
    assert "n199 aten.neg" in draw_svg(graph), "without modules every node is drawn"


def test_a_small_graph_is_drawn_whole_unless_asked_and_a_depth_needs_modules() -> None:
    assert "n2 aten.neg" in draw_svg(chain(4), modules={0: "model.a"})
    assert "no module" in draw_svg(chain(4), modules={0: "model.a"}, depth=1)
    with pytest.raises(UsageError, match="names no modules"):
        draw_svg(chain(4), depth=1)
