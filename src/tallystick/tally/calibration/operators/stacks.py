"""Stacks that compute operators by other kernels, and every value of runs of a graph with its exact value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.lazy import require
from tallystick.core.safetensors import StateFile, write_state
from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.programs.execution import Arguments, Engine, Reference, execute
from tallystick.programs.graph import Graph, Node, Ref, float_results, operands_of, results_of
from tallystick.programs.operators.algebra import Axes
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.values import Value, Values
from tallystick.tally.calibration.training.stacks import PORTABLE, Stack, enter

# Operators by their definitions in NumPy. Every sum goes from its first term to its last and is rounded at each.
#
# This is the order of a plain loop. Of all honest orders it has the largest errors. Compilers for small devices emit
# it.


class Loops(Values):
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


class Definitions(Reference):
    """NumPy in the dtypes of the graph: every operator by its definition, rounded after each operation."""

    def __init__(self, algebra: Values) -> None:
        self.algebra = algebra


BY_LIBRARY: Final = Values(NUMPY)
IN_ORDER: Final = Loops(_Library())


# Stacks that compute the same operators by other kernels: other instruction sets, libraries, threads and engines.
#
# JAX, IREE and NumPy run ATen operators by their definitions, so the formulas differ from those of fused kernels too.


@dataclass(frozen=True)
class OperatorStack(Stack):
    """A stack with the engine that runs each operator; the settings of PyTorch apply only to `torch`."""

    engine: Literal["torch", "jax", "iree", "numpy", "loops"] = "torch"


WIDE: Final = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
BASE: Final = OperatorStack("base")
STACKS: Final = (
    BASE,
    OperatorStack("2 threads", threads=2),
    OperatorStack("AVX2 vector code", {"ATEN_CPU_CAPABILITY": "avx2"}),
    OperatorStack("portable vector code", {"ATEN_CPU_CAPABILITY": "default"}),
    OperatorStack("MKL compatible", {"MKL_CBWR": "COMPATIBLE"}),
    OperatorStack("oneDNN off", mkldnn=False),
    OperatorStack("oneDNN AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    OperatorStack("all portable", PORTABLE),
    OperatorStack("JAX", engine="jax"),
    OperatorStack("JAX SSE4.2", {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}, engine="jax"),
    OperatorStack("IREE", engine="iree"),
    OperatorStack("NumPy", engine="numpy"),
    OperatorStack("NumPy SSE", {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": WIDE}, engine="numpy"),
    OperatorStack("plain loops", engine="loops"),
    OperatorStack("CUDA", device="cuda"),
)


def stack_named(name: str) -> OperatorStack:
    """The stack of that name."""
    return next(stack for stack in STACKS if stack.name == name)


def stacks_here() -> tuple[OperatorStack, ...]:
    """The stacks for which this machine has the libraries and the device."""
    return tuple(stack for stack in STACKS if _is_here(stack))


def engine_of(stack: OperatorStack, graph: Graph | None = None) -> Engine:
    """The engine of a stack; the process must have been started with its variables. IREE compiles `graph` if it can."""
    if stack.engine == "jax":
        from tallystick.engines.jax.engine import JaxEngine

        return JaxEngine()
    if stack.engine == "iree":
        return _iree(graph)
    if stack.engine in ("numpy", "loops"):
        return Definitions(BY_LIBRARY if stack.engine == "numpy" else IN_ORDER)
    from tallystick.engines.torch.engine import TorchEngine

    enter(stack)
    return TorchEngine(stack.device)


def _iree(graph: Graph | None) -> Engine:
    from tallystick.engines.iree import IreeEngine

    engine = IreeEngine()
    with suppress(UnavailableError):  # an operator that does not compile raises again when it is prepared
        if graph is not None:
            engine.compile(graph)
    return engine


def base_engine() -> Engine:
    """PyTorch with its default settings; raises `UnavailableError` if it is not installed."""
    require("torch")
    return engine_of(BASE)


def _is_here(stack: OperatorStack) -> bool:
    if stack.device == "cuda":
        import torch

        return torch.cuda.is_available()
    return _has(
        {"torch": "torch", "jax": "jax", "iree": "iree.compiler", "numpy": "numpy", "loops": "numpy"}[stack.engine]
    )


def _has(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# A committed graph with its weights, inputs and engine: the base of inference studies and frauds.

ValuesByRef = dict[Ref, Tensor]
"""Every value of one run, which a prover opens on request."""


@dataclass(frozen=True)
class StudyWorkload:
    """A graph with all its inputs bound, and the output from which a decision is read.

    `decision` names an output with scores on its last axis; the index of the largest one is the answer.
    """

    name: str
    graph: Graph
    bindings: State
    engine: Engine
    decision: str

    def with_bindings(self, bindings: State) -> StudyWorkload:
        """The same graph with some bindings replaced."""
        return replace(self, bindings={**self.bindings, **bindings})

    @property
    def decision_ref(self) -> Ref:
        """The reference of the value with the scores."""
        return next(output.value for output in self.graph.outputs if output.name == self.decision)


def run_values(workload: StudyWorkload, change: Callable[[Node, Arguments, Any], Any] | None = None) -> ValuesByRef:
    """Every value of an honest run; `change` may replace the results of a node before they are passed on."""
    engine = workload.engine if change is None else _Changed(workload.engine, change)
    return all_values(workload.graph, workload.bindings, engine)


def all_values(graph: Graph, bindings: State, engine: Engine) -> ValuesByRef:
    """Every value of one run: inputs, constants and the results of all nodes."""
    values: ValuesByRef = {source.name: bindings[source.name] for source in graph.sources}

    def watch(node: Node, _: Arguments, results: tuple[Any, ...]) -> None:
        by_ref = dict(zip(node.outputs, results, strict=True))
        values.update((ref, engine.unload(by_ref[ref], spec.dtype).copy()) for ref, spec in results_of(node))

    execute(graph, bindings, engine, watch)
    return values


def answer(workload: StudyWorkload, values: Mapping[Ref, Tensor]) -> int:
    """The index of the largest score, at the last position."""
    scores = values[workload.decision_ref].values()
    return int(np.argmax(scores.reshape(-1, scores.shape[-1])[-1]))


@dataclass(frozen=True)
class _Changed:
    """An engine that changes the results of each node by `change`."""

    inner: Engine
    change: Callable[[Node, Arguments, Any], Any]

    @property
    def name(self) -> str:
        return self.inner.name

    def load(self, tensor: Tensor) -> Any:
        return self.inner.load(tensor)

    def unload(self, array: Any, dtype: str) -> Tensor:
        return self.inner.unload(array, dtype)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        run = self.inner.prepare(node)
        return lambda arguments: self.change(node, arguments, run(arguments))


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
