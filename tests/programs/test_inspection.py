"""What is told about a graph, and what is told about two."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from tallystick.core.errors import UsageError
from tallystick.programs.difference import diff
from tallystick.programs.drawing import draw_dot, draw_svg
from tallystick.programs.graph import Graph, Input, Node, Output, Role
from tallystick.programs.inspection import Inspection
from tallystick.programs.layout import arrange
from tallystick.programs.slicing import subgraph


def test_counts(small: Any) -> None:
    found = Inspection(small.graph(), small.find)
    assert found.depth == 11
    assert found.operators["aten.mm.default"].nodes == 2
    assert found.operators["aten.mm.default"].flops == 2 * 4 * 4 * 3 + 2 * 4 * 4 * 4
    assert next(iter(found.operators)) == "aten.mm.default"
    assert found.flops == sum(each.flops for each in found.operators.values())
    assert sum(found.kinds.values()) == 11
    assert found.kinds["accumulates"] == 3
    assert found.value_bytes == sum(each.nbytes for each in small.graph().specs().values())


def test_what_a_node_reads_and_what_reads_it(small: Any) -> None:
    found = Inspection(small.graph(), small.find)
    assert (found.reads(5), found.read_by(1)) == ((4, 1), (3, 5))
    assert (found.reads(0), found.read_by(12)) == ((), ())


def test_the_peak_is_reached_where_most_is_alive(small: Any) -> None:
    graph = small.graph()
    held = sum(each.spec.nbytes for each in graph.sources)
    assert Inspection(subgraph(graph, [0]), small.find).peak_bytes == held - 64 - 16 + 2 * 64
    assert held < Inspection(graph, small.find).peak_bytes < held + Inspection(graph, small.find).value_bytes


def test_the_peak_does_not_grow_with_a_chain(small: Any) -> None:
    def chain(length: int) -> Graph:
        refs = ["x", *(f"n{i}" for i in range(length))]
        nodes = tuple(small.node(i, "aten.relu.default", "F32[1000]", (refs[i],)) for i in range(length))
        source = Input("x", Role.INPUT, small.spec("F32[1000]"))
        return replace(small.graph(), inputs=(source,), constants=(), nodes=nodes, outputs=(Output("y", refs[-1]),))

    assert Inspection(chain(5), small.find).peak_bytes == Inspection(chain(50), small.find).peak_bytes
    assert Inspection(chain(50), small.find).depth == 50


def renumbered(graph: Graph, by: int) -> Graph:
    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        return re.sub(r"^n(\d+)", lambda found: f"n{int(found[1]) + by}", value) if isinstance(value, str) else value

    nodes = tuple(
        replace(node, number=node.number + by, operands={name: moved(each) for name, each in node.operands.items()})
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, outputs=tuple(Output(each.name, moved(each.value)) for each in graph.outputs))


def with_node(graph: Graph, changed: Node) -> Graph:
    return replace(graph, nodes=tuple(changed if each.number == changed.number else each for each in graph.nodes))


def test_other_numbers_are_no_difference(small: Any) -> None:
    found = diff(small.graph(), renumbered(small.graph(), 7))
    assert found.is_empty
    assert found.same == 11


def test_a_changed_attribute_is_one_change(small: Any) -> None:
    graph = small.graph()
    other = with_node(graph, replace(graph.nodes[6], attributes={"factor": 0.2, "how": "all"}))
    found = diff(graph, other)
    assert [(each.number, each.fields) for each in found.changed] == [(7, ("factor",))]
    assert (found.removed, found.added, found.header, found.same) == ((), (), (), 10)


def test_true_is_not_one(small: Any) -> None:
    graph = small.graph()
    other = with_node(graph, replace(graph.nodes[1], attributes={"alpha": 1.0}))
    assert [each.fields for each in diff(graph, other).changed] == [("alpha",)]


def test_a_layer_left_out_is_removed(small: Any) -> None:
    graph = small.graph()
    kept = tuple(node for node in graph.nodes if node.number != 3)
    other = with_node(
        replace(graph, nodes=kept), replace(graph.nodes[3], operands={"self": "n1", "mat2": "weights.second"})
    )
    other = replace(other, outputs=graph.outputs[:1])
    found = diff(graph, other)
    assert (found.removed, found.added) == ((3,), ())
    assert [(each.number, each.fields) for each in found.changed] == [(4, ("self",))]
    assert found.header == ("output outputs.hidden",)
    assert diff(other, graph).added == (3,)


def test_an_operator_replaced_is_removed_and_added(small: Any) -> None:
    graph = small.graph()
    other = with_node(graph, small.node(3, "aten.scale.default", "F32[4,4]", ("n1",), factor=2.0, how="all"))
    found = diff(graph, other)
    assert (found.removed, found.added) == ((3,), (3,))
    assert {each.number for each in found.changed} == {4}


def test_another_batch_changes_results(small: Any) -> None:
    found = diff(small.graph(4), small.graph(2))
    assert found.header == ("input inputs.x",)
    assert len(found.changed) == 11
    assert ("size", "results") in {each.fields for each in found.changed}


def test_graphviz_text_names_every_box_and_arrow(small: Any) -> None:
    dot = draw_dot(small.graph(), small.find)
    assert dot.count(" -> ") == 13
    assert dot.count("label=") == 12
    assert '"n5" -> "n6";' in dot
    assert '"inputs.x" -> "n0";' in dot
    assert "< weights.first" in dot


def test_text_in_pictures_is_escaped(small: Any) -> None:
    graph = small.graph()
    odd = replace(graph, outputs=(Output('<b>"&', "n12"),))
    assert '\\"&' in draw_dot(odd, small.find)
    assert "&lt;b&gt;&quot;&amp;" in draw_svg(odd, small.find)
    ElementTree.fromstring(draw_svg(odd, small.find))


def test_no_two_boxes_of_a_picture_overlap(small: Any) -> None:
    tree = ElementTree.fromstring(draw_svg(small.graph(), small.find))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [each for each in tree.iter(f"{space}rect") if each.get("rx")]
    assert len(boxes) == 12
    sides = [tuple(float(each.get(key, "")) for key in ("x", "y", "width", "height")) for each in boxes]
    for i, (x, y, width, height) in enumerate(sides):
        assert x >= 0
        assert x + width <= float(tree.get("width", ""))
        for other_x, other_y, other_width, other_height in sides[i + 1 :]:
            apart_x = x + width <= other_x or other_x + other_width <= x
            assert apart_x or y + height <= other_y or other_y + other_height <= y


def test_every_arrow_points_down() -> None:
    arrows = [("a", "b"), ("a", "d"), ("b", "c"), ("c", "d"), ("e", "d"), ("a", "f")]
    found = arrange(arrows, dict.fromkeys("abcefd", (30.0, 10.0)), (5.0, 20.0))
    assert all(found.middles[a][1] < found.middles[b][1] for a, b in arrows)
    assert found.middles["e"][1] == found.middles["c"][1]
    assert len(found.routes["a", "d"]) == 4


def test_too_many_nodes_are_not_drawn(small: Any) -> None:
    graph = small.graph()
    many = tuple(small.node(i, "aten.relu.default", "F32[4,3]", ("inputs.x",)) for i in range(1001))
    with pytest.raises(UsageError, match="draw a slice"):
        draw_svg(replace(graph, nodes=many, outputs=()), small.find)
    assert draw_svg(replace(graph, nodes=many[:50], outputs=()), small.find)
