"""A run of a graph with every value kept, and beside each result the exact one and its bound.

All stacks are measured on the inputs of this one run, operator by operator: errors do not add up along the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.graphs import Engine, Graph, Node, Ref, execute
from tallystick.graphs.engine import Arguments
from tallystick.graphs.values import float_results, operands_of, results_of
from tallystick.operators.bound import bound_of
from tallystick.tensors import State, StateFile, Tensor, write_state


def record_trace(graph: Graph, bindings: State, engine: Engine) -> dict[Ref, Tensor]:
    """Every value of one run: inputs, constants and the results of all nodes."""
    sources = {value.name: bindings[value.name] for value in (*graph.inputs, *graph.constants)}
    found: dict[Ref, Tensor] = dict(sources)

    def watch(node: Node, arguments: Arguments, results: tuple[Any, ...]) -> None:
        by_ref = dict(zip(node.outputs, results, strict=True))
        found.update((ref, engine.unload(by_ref[ref], spec.dtype).copy()) for ref, spec in results_of(node))

    execute(graph, sources, engine, watch)
    return found


def write_references(graph: Graph, trace: Mapping[Ref, Tensor], path: Path) -> None:
    """For every floating-point result the exact value and the deterministic bound, as F64 tensors in one file."""
    kept: dict[str, Tensor] = {}
    for node in graph.nodes:
        if not float_results(node):
            continue
        balls = bound_of(node.operator, {**operands_of(node, trace), **node.attributes})
        for ref, _ in float_results(node):
            ball = balls[node.outputs.index(ref)]
            assert ball is not None  # a result that the node has is a result that its definition gives
            kept[f"reference.{ref}"] = Tensor.of(np.asarray(ball.value, np.float64))
            kept[f"radius.{ref}"] = Tensor.of(np.asarray(np.broadcast_to(ball.radius, ball.value.shape), np.float64))
    write_state(path, kept)


def read_reference(file: StateFile, ref: Ref) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The exact result and its bound."""
    return file.tensor(f"reference.{ref}").array(), file.tensor(f"radius.{ref}").array()


def input_sets(folder: Path) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Each safetensors file of a folder is one set of inputs; `weights.safetensors` belongs to all of them."""
    weights = folder / "weights.safetensors"
    shared = _read(weights) if weights.is_file() else {}
    for path in sorted(folder.glob("*.safetensors")):
        if path != weights:
            yield path.stem, {**shared, **_read(path)}


def _read(path: Path) -> dict[str, Tensor]:
    with StateFile(path) as file:
        return {name: file.tensor(name).copy() for name in file.names}
