"""A graph's document by its bytes: the root of what nobody read as a graph."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.core.errors import MalformedError
from tallystick.programs.encoding import document_root, graph_bytes, graph_root
from tallystick.programs.graph import GraphLimits


def test_the_root_of_the_bytes_is_that_of_the_graph(small: Any) -> None:
    graph = small.graph()
    assert document_root(graph_bytes(graph), GraphLimits()) == graph_root(graph)


def test_another_document_has_another_root(small: Any) -> None:
    data = graph_bytes(small.graph())
    assert document_root(data.replace(b'"aten"', b'"atem"'), GraphLimits()) != document_root(data, GraphLimits())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data + b"\n",
        lambda data: data.replace(b",", b", ", 1),
        lambda data: data.replace(b'"nodes":', b'"nodez":'),
        lambda data: data[:-1],
    ],
    ids=["a line feed", "a space", "another field", "cut short"],
)
def test_what_is_not_canonical_has_no_root(small: Any, spoil: Any) -> None:
    with pytest.raises(MalformedError, match="graph: "):
        document_root(spoil(graph_bytes(small.graph())), GraphLimits())


def test_a_document_that_is_too_long_is_not_parsed(small: Any) -> None:
    with pytest.raises(MalformedError, match="more than the 10 allowed"):
        document_root(graph_bytes(small.graph()), GraphLimits(document_bytes=10))
