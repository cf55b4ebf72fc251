"""Graphs for other sizes of a batch, as weighted means of captured ones."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tallystick.core.canonical_json import Json
from tallystick.core.errors import MalformedError
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import canonical
from tallystick.programs.graph import Graph
from tallystick.programs.templates import graph_at, weights_at


def flat(rows: int, columns: int, operator: str = "aten.relu.default", stated: int | None = None) -> Graph:
    """A table, made flat; the size of the result is a product of both."""
    nodes: list[Json] = [
        {
            "attributes": {},
            "number": 0,
            "operands": {"self": "inputs.x"},
            "operator": operator,
            "results": [["F32", rows, columns]],
        },
        {
            "attributes": {"size": [stated or rows * columns]},
            "number": 1,
            "operands": {"self": "n0"},
            "operator": "aten.view.default",
            "results": [["F32", stated or rows * columns]],
        },
    ]
    document: dict[str, Json] = {
        "constants": [],
        "dialect": "aten",
        "form": "logical",
        "graph": 1,
        "inputs": [{"name": "inputs.x", "role": "input", "spec": ["F32", rows, columns]}],
        "nodes": nodes,
        "outputs": [{"name": "y", "value": "n1"}],
    }
    return read_graph(canonical(document).encode())


def known(*sizes: tuple[int, int]) -> list[tuple[tuple[int, ...], Graph]]:
    return [(each, flat(*each)) for each in sizes]


def test_a_third_length_follows_from_two() -> None:
    assert graph_at((4, 19), known((4, 8), (4, 11))) == flat(4, 19)
    assert graph_at((4, 2), known((4, 8), (4, 11))) == flat(4, 2)


def test_both_sides_at_once_follow_from_as_many_graphs_as_have_their_products() -> None:
    six = known((1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (1, 3))
    assert graph_at((7, 9), six) == flat(7, 9)
    with pytest.raises(MalformedError):  # to first degree alone 7 times 9 is another number
        graph_at((7, 9), six[:3])


def test_the_first_of_several_graphs_are_used() -> None:
    assert weights_at((4, 19), [(4, 8), (4, 11), (3, 8)], 1) == [Fraction(-8, 3), Fraction(11, 3), 0]


def test_no_graph_follows_off_the_line_of_the_sizes() -> None:
    assert graph_at((5, 8), known((4, 8), (4, 11))) is None
    assert graph_at((4, 9), known((4, 8))) is None
    assert graph_at((4, 9), []) is None


def test_no_graph_follows_from_two_programs() -> None:
    other = [((4, 8), flat(4, 8)), ((4, 11), flat(4, 11, "aten.tanh.default"))]
    assert graph_at((4, 19), other) is None
