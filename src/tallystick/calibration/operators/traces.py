"""Saves every value of runs of a graph, and for each result the exact value and its bound.

All stacks are measured on the values of these runs, operator by operator, so errors do not add up along the graph. Runs
of one graph have values of the same shapes, so each file has a block of runs, stacked along a first axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from tallystick.calibration.operators.workload import all_values
from tallystick.errors import MalformedError, UsageError
from tallystick.graphs.engine import Engine
from tallystick.graphs.graph import Graph, Ref
from tallystick.graphs.values import float_results, operands_of
from tallystick.operators.balls.bound import bound
from tallystick.operators.registry import operator
from tallystick.tensors.safetensors import StateFile, write_state
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor

BLOCK_BYTES: Final = 256 << 20
WEIGHTS: Final = "weights.safetensors"
SHARED: Final = "shared.safetensors"
VALUES: Final = "values.safetensors"
REFERENCES: Final = "references.safetensors"


def input_sets(graph: Graph, constants: State, folder: Path) -> tuple[State, list[State]]:
    """The tensors shared by all runs, and the inputs of each run: one safetensors file of a folder per set of inputs.

    `weights.safetensors` is shared. Raises `UsageError` if there is no set of inputs, and `MalformedError` naming the
    file if an input is missing or has another dtype or shape.
    """
    shared = {**constants, **(_read(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else {})}
    paths = [path for path in sorted(folder.glob("*.safetensors")) if path.name != WEIGHTS]
    if not paths:
        raise UsageError(f"{folder}: no *.safetensors file with a set of inputs")
    wanted = {source.name: source.spec for source in graph.sources}
    return shared, [_fitting(path, wanted, shared) for path in paths]


def write_traces(graph: Graph, shared: State, sets: Iterable[State], engine: Engine, folder: Path) -> Iterator[Path]:
    """Run every set and write the blocks; yields the folder of each block when it is complete."""
    write_state(folder / SHARED, shared)
    rows: list[tuple[State, State]] = []
    number = 0
    for inputs in sets:
        values = all_values(graph, {**shared, **inputs}, engine)
        own = {ref: tensor for ref, tensor in values.items() if ref not in shared}
        rows.append((own, references(graph, values)))
        row_bytes = sum(tensor.nbytes for state in rows[0] for tensor in state.values())
        if len(rows) * row_bytes >= BLOCK_BYTES:
            yield _write_block(folder / f"{number:04d}", rows)
            rows, number = [], number + 1
    if rows:
        yield _write_block(folder / f"{number:04d}", rows)


def references(graph: Graph, values: Mapping[Ref, Tensor]) -> State:
    """For every floating-point result the exact value and the deterministic bound, as F64 tensors."""
    tensors: dict[str, Tensor] = {}
    for node in graph.nodes:
        wanted = float_results(node)
        bounds = bound(operator(node.operator), {**operands_of(node, values), **node.attributes}) if wanted else ()
        for ref, _ in wanted:
            result = bounds[node.outputs.index(ref)]
            assert result is not None  # the definition gives every result that the node has
            tensors[f"reference.{ref}"] = Tensor.of(np.asarray(result.value, np.float64))
            tensors[f"radius.{ref}"] = Tensor.of(np.ascontiguousarray(result.radius, np.float64))
    return tensors


class Block:
    """One block of runs; each tensor is read from its file on request."""

    def __init__(self, folder: Path) -> None:
        self._values = StateFile(folder / VALUES)
        self._references = StateFile(folder / REFERENCES)

    def values(self, ref: Ref) -> list[Tensor]:
        """One value in every run of the block."""
        stacked = self._values.tensor(ref)
        return [Tensor.of(row, stacked.dtype) for row in stacked.array()]

    def references(self, ref: Ref) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """The exact result and its bound in every run of the block."""
        names = (f"reference.{ref}", f"radius.{ref}")
        return list(zip(*(self._references.tensor(name).array() for name in names), strict=True))


def _write_block(folder: Path, rows: list[tuple[State, State]]) -> Path:
    for name, states in zip((VALUES, REFERENCES), zip(*rows, strict=True), strict=True):
        stacked = {ref: np.stack([state[ref].array() for state in states]) for ref in states[0]}
        write_state(folder / name, {ref: Tensor.of(values, states[0][ref].dtype) for ref, values in stacked.items()})
    return folder


def _fitting(path: Path, wanted: Mapping[Ref, TensorSpec], shared: State) -> State:
    """The inputs of the graph in one file; raises `MalformedError` if one is missing or does not fit."""
    inputs = {name: tensor for name, tensor in _read(path).items() if name in wanted}
    for name, spec in wanted.items():
        tensor = inputs.get(name, shared.get(name))
        if tensor is None:
            raise MalformedError(f"{path.name}: {name} is missing, {spec} is needed")
        if TensorSpec.of(tensor) != spec:
            raise MalformedError(f"{path.name}: {name} is {TensorSpec.of(tensor)}, {spec} is needed")
    return inputs


def _read(path: Path) -> State:
    with StateFile(path) as file:
        return {name: file.tensor(name).copy() for name in file.names}
