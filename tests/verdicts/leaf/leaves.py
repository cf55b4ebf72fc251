"""Small openings without a framework: a graph with products, a softmax and choices, run by NumPy in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.audits.opening import OpeningSource, open_operators
from tallystick.core.digests import digest, digest_from, leaf_hash, tree_root
from tallystick.core.tensor_digests import state_digest, tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.formats.claims import InferenceClaim, Log
from tallystick.formats.records import CallRecord
from tallystick.formats.store.log import OpenedLine
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import canonical, graph_bytes, node_json
from tallystick.programs.execution import Engine
from tallystick.programs.graph import Constant, Graph, GraphForm, Input, Node, Output, Role
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.values import Value, Values
from tallystick.verdicts.leaf.bundling import WholeOpening

Change = Callable[[tuple[np.ndarray[Any, Any], ...], Mapping[str, Any]], tuple[np.ndarray[Any, Any], ...]]
F32, I64, BOOL = "F32", "I64", "BOOL"
ROWS, WIDTH, CLASSES = 6, 16, 5


@dataclass
class NumpyEngine:
    """The definitions in the dtypes that they state; `changes` replaces the results of nodes by number."""

    changes: Mapping[int, Change] = field(default_factory=dict)
    name: str = "numpy"
    algebra: Values = field(default_factory=lambda: Values(NUMPY, None))

    def load(self, tensor: Tensor) -> Value:
        return self.algebra.load(tensor)

    def unload(self, array: Value, dtype: str) -> Tensor:
        return self.algebra.unload(array)

    def prepare(self, node: Node) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        def run(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
            results = operator(node.operator).read(self.algebra, {**node.attributes, **arguments})
            if node.number not in self.changes:
                return results
            arrays = {name: value.array for name, value in arguments.items() if isinstance(value, Value)}
            changed = self.changes[node.number](tuple(np.array(each.array) for each in results), arrays)
            return tuple(Value(one, each.dtype) for one, each in zip(changed, results, strict=True))

        return run


def node(number: int, name: str, operands: dict[str, Any], results: list[Any], **attributes: Any) -> Node:
    known = operator(f"aten.{name}")
    given = {each.name: attributes.get(each.name) for each in known.parameters if not each.is_operand}
    specs = tuple(TensorSpec(kind, tuple(shape)) for kind, *shape in results)
    return Node(number, known.name, operands, given, specs)


def classifier() -> Graph:
    """Two layers, a constant, a softmax, and the choices that hang by it; node numbers have gaps."""
    scale = Tensor.of(np.linspace(0.5, 1.5, CLASSES, dtype=np.float32))
    scores, choice = [F32, ROWS, CLASSES], [I64, ROWS]
    nodes = (
        node(0, "mm.default", {"self": "inputs.x", "mat2": "weights.first"}, [[F32, ROWS, WIDTH]]),
        node(2, "relu.default", {"self": "n0"}, [[F32, ROWS, WIDTH]]),
        node(
            *(3, "addmm.default", {"self": "weights.bias", "mat1": "n2", "mat2": "weights.second"}, [scores]),
            alpha=1,
            beta=1,
        ),
        node(5, "mul.Tensor", {"self": "n3", "other": "c0"}, [scores]),
        node(6, "_softmax.default", {"self": "n5"}, [scores], dim=1, half_to_float=False),
        node(7, "argmax.default", {"self": "n6"}, [choice], dim=1, keepdim=False),
        node(
            *(8, "topk.default", {"self": "n6"}, [[F32, ROWS, 2], [I64, ROWS, 2]]),
            k=2,
            dim=1,
            largest=True,
            sorted=True,
        ),
        node(9, "gt.Scalar", {"self": "n6"}, [[BOOL, ROWS, CLASSES]], other=0.25),
        node(10, "sum.dim_IntList", {"self": "n5"}, [[F32, ROWS]], dim=(1,), keepdim=False, dtype=None),
        node(12, "sort.default", {"self": "n5"}, [scores, [I64, ROWS, CLASSES]], dim=1, descending=False),
        node(13, "t.default", {"self": "n5"}, [[F32, CLASSES, ROWS]]),
        node(14, "add.Tensor", {"self": "n3", "other": "n5"}, [scores], alpha=1),
    )
    inputs = (
        Input("inputs.x", Role.INPUT, TensorSpec(F32, (ROWS, WIDTH))),
        Input("weights.bias", Role.WEIGHT, TensorSpec(F32, (CLASSES,))),
        Input("weights.first", Role.WEIGHT, TensorSpec(F32, (WIDTH, WIDTH))),
        Input("weights.second", Role.WEIGHT, TensorSpec(F32, (WIDTH, CLASSES))),
    )
    outputs = (Output("outputs.class", "n7"), Output("outputs.sum", "n10"), Output("outputs.x", "inputs.x"))
    constants = (Constant("c0", TensorSpec(F32, (CLASSES,)), tensor_digest(scale)),)
    return read_graph(graph_bytes(Graph("aten", GraphForm.LOGICAL, inputs, constants, nodes, outputs)))


def bindings(seed: int = 0) -> dict[str, Tensor]:
    """Everything that the classifier reads."""
    rng = np.random.default_rng(seed)
    shapes = {
        "inputs.x": (ROWS, WIDTH),
        "weights.bias": (CLASSES,),
        "weights.first": (WIDTH, WIDTH),
        "weights.second": (WIDTH, CLASSES),
    }
    found = {name: Tensor.of(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    return found | {"c0": Tensor.of(np.linspace(0.5, 1.5, CLASSES, dtype=np.float32))}


@dataclass(frozen=True)
class Leaves:
    """An opening of a call, its whole, and the claim that it belongs to."""

    folder: Path
    whole: WholeOpening
    claim: InferenceClaim


def opened(
    folder: Path,
    changes: Mapping[int, Change] | None = None,
    graph: Graph | None = None,
    given: Mapping[str, Tensor] | None = None,
    with_tensors: bool = True,
    engine: Engine | None = None,
) -> Leaves:
    """Run a graph, with changes of a forger who commits to all of it, and open it under a claim of its own."""
    from tallystick.programs.encoding import graph_root
    from tallystick.programs.execution import execute

    graph, given, engine = graph or classifier(), given or bindings(), engine or NumpyEngine(changes or {})
    results = execute(graph, given, engine)
    read = {name.removeprefix("inputs."): value for name, value in given.items() if name.startswith("inputs.")}
    weights = {name: value for name, value in given.items() if name.startswith("weights.")}
    line = CallRecord(index=1, inputs=state_digest(read), outputs=state_digest(results)).to_bytes()
    log = Log(root=digest_from(tree_root([leaf_hash(line)])), size=1)
    environment = digest("environment", b"{}")
    claim = InferenceClaim(
        graph=graph_root(graph), weights=state_digest(weights), environment=environment, transcript=log
    )
    subject = OpeningSource(claim.identity, log, OpenedLine(0, line, ()), graph, given)
    open_operators(subject, folder, engine, with_tensors=with_tensors)
    return Leaves(folder, WholeOpening.read(folder), claim)


def alone(one: Node, *inputs: Input) -> Graph:
    """A graph of one operator; its result is the graph's."""
    return read_graph(graph_bytes(Graph("aten", GraphForm.LOGICAL, inputs, (), (one,), (Output("outputs.z", "n0"),))))


def lookup() -> Graph:
    """Two rows of a table of four."""
    said = {"padding_idx": -1, "scale_grad_by_freq": False, "sparse": False}
    one = node(0, "embedding.default", {"weight": "weights.w", "indices": "inputs.x"}, [[F32, 2, 3]], **said)
    table = Input("weights.w", Role.WEIGHT, TensorSpec(F32, (4, 3)))
    return alone(one, Input("inputs.x", Role.INPUT, TensorSpec(I64, (2,))), table)


def shifted(by: float, result: int = 0, place: int = 0) -> Change:
    """One element of a result is moved."""

    def change(results: tuple[np.ndarray[Any, Any], ...], _: Mapping[str, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        results[result].flat[place] += np.asarray(by, results[result].dtype)
        return results

    return change


__all__ = [
    "Leaves",
    "NumpyEngine",
    "alone",
    "bindings",
    "canonical",
    "classifier",
    "lookup",
    "node",
    "node_json",
    "opened",
    "shifted",
]
