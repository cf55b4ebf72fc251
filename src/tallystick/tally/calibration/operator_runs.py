"""Runs of a graph on one stack: every value and its exact one, the errors of operators, and those of whole runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.lazy import require
from tallystick.core.safetensors import StateFile, read_state, write_state
from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.programs.execution import Arguments, Engine, Reference, execute
from tallystick.programs.files import load_program
from tallystick.programs.graph import Graph, Node, Ref, float_results, operands_of, results_of
from tallystick.programs.operators.algebra import Axes
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.precision import FORMATS
from tallystick.programs.operators.values import Value, Values
from tallystick.tally.calibration.stacks import BASE, Stack, enter
from tallystick.verdicts.bounds import errors_of
from tallystick.verdicts.opening.budget import Accumulated, OperatorBias, PathError, accumulate

# Operators by their definitions in NumPy. Every sum goes from its first term to its last and is rounded at each.
#
# This is the order of a plain loop. Of all honest orders it has the largest errors. Compilers for small devices emit
# it.


class _Loops(Values):
    """`Values` on NumPy, with loops for sums and products of matrices."""

    def sum(self, x: Value, axes: Axes, keep: bool = False, short: int = 0) -> Value:
        """See `Algebra.sum`."""
        kept = [side for axis, side in enumerate(x.shape) if axis not in axes]
        terms = np.moveaxis(x.array, axes, range(len(axes))).reshape(-1, *kept)
        total = np.zeros(kept, x.array.dtype)
        for term in terms:
            total = total + term
        shape = [1 if axis in axes else side for axis, side in enumerate(x.shape)] if keep else kept
        return Value(total.reshape(shape), x.dtype)


class _Library:
    """NumPy with its own matrix product."""

    def __getattr__(self, name: str) -> Any:
        return getattr(NUMPY, name)

    def matmul(self, x: Any, y: Any) -> Any:
        """The matrix product as a sum of rank-one updates, in order."""
        total = np.zeros((*x.shape[:-1], y.shape[-1]), x.dtype)
        for k in range(x.shape[-1]):
            total += x[..., :, k, None] * y[..., None, k, :]
        return total


class _Definitions(Reference):
    """NumPy in the dtypes of the graph: every operator by its definition, rounded after each operation."""

    def __init__(self, algebra: Values) -> None:
        self.algebra = algebra


BY_LIBRARY: Final = Values(NUMPY)
IN_ORDER: Final = _Loops(_Library())


def engine_of(stack: Stack, graph: Graph | None = None) -> Engine:
    """The engine of a stack; the process must have been started with its variables. IREE compiles `graph` if it can."""
    if stack.engine == "jax":
        from tallystick.engines.jax.engine import JaxEngine

        return JaxEngine()
    if stack.engine == "iree":
        from tallystick.engines.iree import IreeEngine

        compiled = IreeEngine()
        with suppress(UnavailableError):  # an operator that does not compile raises again when it is prepared
            if graph is not None:
                compiled.compile(graph)
        return compiled
    if stack.engine in ("numpy", "loops"):
        return _Definitions(BY_LIBRARY if stack.engine == "numpy" else IN_ORDER)
    from tallystick.engines.torch.engine import TorchEngine

    enter(stack)
    return TorchEngine(stack.device)


def base_engine() -> Engine:
    """PyTorch with its default settings; raises `UnavailableError` if it is not installed."""
    require("torch")
    return engine_of(BASE)


def all_values(graph: Graph, bindings: State, engine: Engine) -> dict[Ref, Tensor]:
    """Every value of one run: inputs, constants and the results of all nodes."""
    values: dict[Ref, Tensor] = {source.name: bindings[source.name] for source in graph.sources}

    def watch(node: Node, _: Arguments, results: tuple[Any, ...]) -> None:
        by_ref = dict(zip(node.outputs, results, strict=True))
        values.update((ref, engine.unload(by_ref[ref], spec.dtype).copy()) for ref, spec in results_of(node))

    execute(graph, bindings, engine, watch)
    return values


# Saves every value of runs of a graph, and for each result the exact value and its bound.
#
# All stacks are measured on the values of these runs, operator by operator, so errors do not add up along the graph.
# Runs of one graph have values of the same shapes, so each file has a block of runs, stacked along a first axis.

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


# In a process on the stack.

DIFFERS: Final = 19
"""The column after those of `Errors.row`: 1 if the bits of the result differ from those of the saved run."""
Table = npt.NDArray[np.float64]


def measure_errors(stack: Stack, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """How far each result lies from the exact one in every run of the blocks, and the reasons for skipped results."""
    graph, _ = load_program(Path(job["program"]))
    traces, engine = Path(job["traces"]), engine_of(stack, graph)
    shared = {name: engine.load(tensor) for name, tensor in read_state(traces / SHARED).items()}
    tables: dict[str, list[Table]] = defaultdict(list)
    skipped: dict[str, str] = {}
    for block in (Block(Path(folder)) for folder in job["blocks"]):
        for node in graph.nodes:
            results = [ref[1:] for ref, _ in float_results(node)]
            if not results or results[0] in skipped:
                continue
            try:
                for result, table in zip(results, _tables(engine, node, shared, block), strict=True):
                    tables[result].append(table)
            except UnavailableError as error:
                skipped |= dict.fromkeys(results, str(error))
    path = traces.with_name("jobs") / f"{stack.name.replace(' ', '_')}_errors.safetensors"
    write_state(path, {result: Tensor.of(np.concatenate(rows)) for result, rows in tables.items()})
    yield {"tables": str(path), "skipped": skipped}


def _tables(engine: Engine, node: Node, shared: Mapping[Ref, Any], block: Block) -> list[Table]:
    """The errors of each floating-point result of a node in the runs of a block: F64[runs, 20]."""
    run = engine.prepare(node)
    own = {ref: block.values(ref) for ref in node.refs if ref not in shared}
    kept = {ref: block.values(ref) for ref, _ in float_results(node)}
    rows = []
    for i in range(len(next(iter(kept.values())))):
        loaded = {ref: engine.load(tensors[i]) for ref, tensors in own.items()}
        rows.append(run(operands_of(node, {**shared, **loaded})))
    tables = []
    for ref, spec in float_results(node):
        table = np.empty((len(rows), DIFFERS + 1))
        cases = zip(rows, kept[ref], block.references(ref), strict=True)
        for i, (results, saved, (reference, radius)) in enumerate(cases):
            claimed = engine.unload(results[node.outputs.index(ref)], spec.dtype)
            errors = errors_of(claimed.values().astype(np.float64), reference, radius, FORMATS[spec.dtype].unit)
            table[i, :DIFFERS], table[i, DIFFERS] = errors.row(), claimed.array().tobytes() != saved.array().tobytes()
        tables.append(table)
    return tables


def whole_runs(stack: Stack, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The statistics of a whole run for every set of inputs, or the reason why this stack cannot run the graph."""
    graph, constants = load_program(Path(job["program"]))
    shared, sets = input_sets(graph, constants, Path(job["inputs"]))
    engine = engine_of(stack, graph)
    try:
        return [asdict(accumulate(graph, all_values(graph, {**shared, **inputs}, engine).get)) for inputs in sets]
    except UnavailableError as error:
        return [{"skipped": str(error)}]


def read_run(row: Mapping[str, Any]) -> Accumulated:
    """Read the statistics of one run as `whole_runs` gives them."""
    biases = tuple(OperatorBias(**stated) for stated in row["biases"])
    path_errors = tuple(PathError(**stated) for stated in row["path_errors"])
    return Accumulated(biases, path_errors, tuple(row["unavailable"]))
