"""A few operators of our own, a small model in them, and an engine that computes them with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.execution import execute
from tallystick.programs.graph import Constant, Graph, GraphForm, Input, Node, Output, Role
from tallystick.programs.operators.algebra import V
from tallystick.programs.operators.definition import Dtype, Family, Ints, Operator, Scalar

FAMILY = Family("aten")


@FAMILY.accumulates("mm.default", "matrix product")
def mm(a: Any, self: V, mat2: V) -> Any:
    return a.dot(self, mat2, ((1,), (0,)))


@FAMILY.rounds("add.Tensor", "x + αy")
def add(a: Any, self: V, other: V, alpha: Scalar = 1) -> Any:
    return a.add(self, a.mul(other, alpha))


@FAMILY.exact("relu.default", "max(x, 0)")
def relu(a: Any, self: V) -> Any:
    return a.maximum(self, 0)


@FAMILY.moves("view.default", "another shape")
def view(a: Any, self: V, size: Ints) -> Any:
    return a.reshape(self, size)


@FAMILY.moves("expand.default", "repeat along sides of 1")
def expand(a: Any, self: V, size: Ints, implicit: bool) -> Any:
    return a.broadcast(self, size)


@FAMILY.moves("split.Tensor", "pieces")
def split(a: Any, self: V, split_size: int, dim: int = 0) -> Any:
    side = self.shape[dim]
    return tuple(_piece(a, self, dim, at, min(at + split_size, side)) for at in range(0, side, split_size))


def _piece(a: Any, x: Any, dim: int, begin: int, end: int) -> Any:
    starts, stops = [0] * len(x.shape), list(x.shape)
    starts[dim], stops[dim] = begin, end
    return a.slice(x, starts, stops, [1] * len(x.shape))


@FAMILY.moves("cat.default", "one after the other")
def cat(a: Any, tensors: Sequence[V], dim: int = 0) -> Any:
    return a.concat(tensors, dim)


@FAMILY.accumulates("sum.dim_IntList", "sum")
def total(a: Any, self: V, dim: Ints | None, keepdim: bool) -> Any:
    return a.sum(self, tuple(range(len(self.shape))) if dim is None else dim, keep=keepdim)


@FAMILY.moves("arange.default", "0, 1, 2 …")
def arange(a: Any, end: Scalar, dtype: Dtype) -> Any:
    return a.iota((end,), 0, dtype)


@FAMILY.rounds("scale.default", "x times a factor")
def scale(a: Any, self: V, factor: float, how: str) -> Any:
    return a.mul(self, factor)


@FAMILY.composite("choose.default", "one result or two")
def choose(a: Any, self: V, other: V | None, mask: tuple[bool, ...]) -> Any:
    return (a.neg(self) if mask[0] else None, a.abs(self) if mask[1] else None)


NUMPY: Mapping[str, Callable[..., Any]] = {
    "aten.mm.default": lambda self, mat2: self @ mat2,
    "aten.add.Tensor": lambda self, other, alpha: self + other * np.asarray(alpha, other.dtype),
    "aten.relu.default": lambda self: np.maximum(self, 0),
    "aten.view.default": lambda self, size: self.reshape(size),
    "aten.expand.default": lambda self, size, implicit: np.broadcast_to(self, size),
    "aten.split.Tensor": lambda self, split_size, dim: tuple(
        np.split(self, range(split_size, self.shape[dim], split_size), dim)
    ),
    "aten.cat.default": lambda tensors, dim: np.concatenate(tensors, dim),
    "aten.sum.dim_IntList": lambda self, dim, keepdim: np.sum(self, dim, keepdims=keepdim),
    "aten.arange.default": lambda end, dtype: np.arange(end, dtype={"I64": np.int64, "F32": np.float32}[dtype]),
    "aten.scale.default": lambda self, factor, how: self * np.asarray(factor, self.dtype),
    "aten.choose.default": lambda self, other, mask: (-self if mask[0] else None, np.abs(self) if mask[1] else None),
}


class NumPyEngine:
    """Nodes computed in their own dtype; remembers which."""

    name = "numpy"

    def __init__(self) -> None:
        self.ran: list[int] = []

    def load(self, tensor: Tensor) -> Any:
        return tensor.array()

    def unload(self, array: Any, dtype: str) -> Tensor:
        return Tensor.of(np.asarray(array), dtype)

    def prepare(self, node: Node) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        def run(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
            self.ran.append(node.number)
            results = NUMPY[node.operator](**arguments, **node.attributes)
            return results if isinstance(results, tuple) else (results,)

        return run


def find_operator(name: str) -> Operator:
    if name not in FAMILY.operators:
        raise MalformedError(f"operator {name[:80]!r} is not on the allow-list")
    return FAMILY.operators[name]


def spec(text: str) -> TensorSpec:
    """`F32[2,3]` as a spec."""
    dtype, _, sides = text.removesuffix("]").partition("[")
    return TensorSpec(dtype, tuple(int(side) for side in sides.split(",") if side))


def node_of(number: int, operator: str, results: str, operands: Any = (), **attributes: Any) -> Node:
    """A node whose operands are given by name or, in order, by value; results are specs divided by spaces."""
    names = [each.name for each in find_operator(operator).parameters if each.is_operand]
    given = operands if isinstance(operands, dict) else dict(zip(names, operands, strict=True))
    specs = tuple(None if each == "-" else spec(each) for each in results.split())
    return Node(number, operator, given, attributes, specs)


SHIFT = Tensor.of(np.array([0.5, -0.5, 0.25, 0.0], np.float32))


def model_graph(batch: int = 4) -> Graph:
    """Two layers, a skip, a split and a sum per example: `batch` examples of 3 features."""
    b = batch
    nodes = (
        node_of(0, "aten.mm.default", f"F32[{b},4]", ("inputs.x", "weights.first")),
        node_of(1, "aten.add.Tensor", f"F32[{b},4]", ("n0", "shift"), alpha=1),
        node_of(3, "aten.relu.default", f"F32[{b},4]", ("n1",)),
        node_of(4, "aten.mm.default", f"F32[{b},4]", ("n3", "weights.second")),
        node_of(5, "aten.add.Tensor", f"F32[{b},4]", ("n4", "n1"), alpha=0.5),
        node_of(6, "aten.split.Tensor", f"F32[{b},2] F32[{b},2]", ("n5",), split_size=2, dim=1),
        node_of(7, "aten.scale.default", f"F32[{b},2]", ("n6",), factor=0.1, how="all"),
        node_of(8, "aten.cat.default", f"F32[{b},4]", (("n7", "n6.1"),), dim=1),
        node_of(9, "aten.view.default", f"F32[{b},2,2]", ("n8",), size=(b, 2, 2)),
        node_of(10, "aten.sum.dim_IntList", f"F32[{b},2]", ("n9",), dim=(2,), keepdim=False),
        node_of(12, "aten.choose.default", f"F32[{b},2] -", ("n10", None), mask=(True, False)),
    )
    return Graph(
        "aten",
        GraphForm.LOGICAL,
        (
            Input("weights.first", Role.WEIGHT, spec("F32[3,4]")),
            Input("weights.second", Role.WEIGHT, spec("F32[4,4]")),
            Input("inputs.x", Role.INPUT, spec(f"F32[{b},3]")),
        ),
        (Constant("shift", spec("F32[4]"), tensor_digest(SHIFT)),),
        nodes,
        (Output("outputs.y", "n12"), Output("outputs.hidden", "n3")),
    )


def model_tensors(batch: int = 4, seed: int = 0) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    shapes = {"weights.first": (3, 4), "weights.second": (4, 4), "inputs.x": (batch, 3)}
    return {name: Tensor.of(draw.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()} | {
        "shift": SHIFT
    }


def values_of(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every value of a graph by reference."""
    refs = tuple(Output(ref, ref) for node in graph.nodes for ref in node.outputs if ref is not None)
    return dict(tensors) | execute(replace(graph, outputs=refs), tensors, NumPyEngine())


class Small:
    """What the tests of this folder share."""

    find = staticmethod(find_operator)
    graph = staticmethod(model_graph)
    tensors = staticmethod(model_tensors)
    node = staticmethod(node_of)
    spec = staticmethod(spec)
    engine = NumPyEngine
    values = staticmethod(values_of)


@pytest.fixture(scope="session")
def small() -> type[Small]:
    return Small
