"""Which nodes of a step graph are the update: those behind the gradients that give weights and optimizer memory."""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.graphs.graph import Graph, Output
from tallystick.graphs.slicing import ancestors, givers_of


def before_update(graph: Graph) -> set[int]:
    """The nodes up to the gradients; all of a graph without outputs `gradients.…`, as of inference."""
    gradients = [output for output in graph.outputs if output.name.startswith("gradients.")]
    return _behind(graph, gradients) if gradients else {node.number for node in graph.nodes}


def update_nodes(graph: Graph) -> tuple[int, ...]:
    """The nodes of the update, in ascending order."""
    state = [output for output in graph.outputs if output.name.startswith(("weights.", "optimizer."))]
    return tuple(sorted(_behind(graph, state) - before_update(graph)))


def _behind(graph: Graph, outputs: Iterable[Output]) -> set[int]:
    givers = givers_of(graph)
    return ancestors(graph, {givers[output.value] for output in outputs if output.value in givers})
