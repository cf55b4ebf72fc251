"""Bounds of all operators of a graph beside a pass on PyTorch: values and radii in F32, nothing goes through NumPy.

`operators.balls.bound` computes an exact result and how far an honest one may be from it, in F64 on NumPy; for a whole
graph that takes some twenty passes. Here the same definitions are read in F32 on PyTorch. By the same rules the
rounding of this reading is that of one more evaluation (docs/bounds.md), so a radius covers the difference between two
honest devices: it is twice as large for F32, and hardly larger for BF16. Judges do not use it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import torch
from torch.fx import GraphModule

from tallystick.errors import MalformedError
from tallystick.frameworks.torch.arrays import QUICK
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.traced import TracedCall, trace
from tallystick.graphs.graph import Constant, Graph, Node, Ref, Role
from tallystick.graphs.values import fetch, float_results, operands_of
from tallystick.operators.balls.ball import Ball
from tallystick.operators.balls.bound import algebra_of, read
from tallystick.operators.balls.ordinary import LIMIT, OrdinaryBalls, least_of
from tallystick.operators.definition import Exactness
from tallystick.operators.precision import PLAIN, Precision
from tallystick.operators.registry import operator
from tallystick.operators.rounding import DETERMINISTIC, Model
from tallystick.operators.values import Value
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

WIDE: Final = "F64"
SUMS: Final = frozenset(
    {
        *(f"aten.{name}.default" for name in ("mm", "bmm", "mv", "dot", "vdot", "matmul", "linear", "convolution")),
        *(f"aten.{name}.default" for name in ("addmm", "addmv", "baddbmm")),
        *(f"aten.conv{axes}d.{overload}" for axes in (1, 2, 3) for overload in ("default", "padding")),
    }
)
"""Operators whose results are sums of products of their operands and of nothing else.

Their radius depends on operands through Σ|x||w| and through the sizes of results, which are at most that. So it is
read on the magnitudes of operands, which leaves the first as it is, and takes Σ|x||w| for the second. The engine's own
result is then the value: it is an evaluation in F32 as that of the definition would be, so the same radius holds around
it.
"""


@dataclass(frozen=True)
class TensorBound:
    """One result: a `value` that this machine computed, and a `radius` of the same shape around it.

    Every honest result lies within the radius, which is infinite where there is no bound. Both are F32, or F64 for
    operators with F64 among their operands or results.
    """

    value: torch.Tensor
    radius: torch.Tensor


class GraphBounds:
    """The bounds of a graph with fixed weights; what depends on weights alone is computed once and kept.

    `bindings` holds at least the weights and constants, and may hold more. Raises `MalformedError` for an operator that
    is not on the allow-list, or a weight that is missing.
    """

    def __init__(
        self,
        graph: Graph,
        bindings: Mapping[Ref, Tensor],
        precision: Precision = PLAIN,
        model: Model = DETERMINISTIC,
        device: str = "cpu",
    ) -> None:
        self.graph, self.engine = graph, TorchEngine(device)
        self._specs, self._traced = graph.specs(), dict[Any, GraphModule | None]()
        self._weights = {name: self._load(bindings, name) for name in _weights(graph)}
        self._held = {name: self._ball(name, value) for name, value in self._weights.items()}
        self._least = {name: least_of(ball) for name, ball in self._held.items()}
        settings = (precision, model, self.engine.name == "torch")
        bounded = (node for node in graph.nodes if float_results(node) and not _moves(node))
        self._readings = [OperatorReading(node, self._specs, *settings) for node in bounded]
        self._programs: dict[int, TracedCall | None] = {}

    def run(self, inputs: Mapping[Ref, Tensor]) -> dict[Ref, TensorBound]:
        """Run the graph on PyTorch, and bound each result that rounding can change, for the operands that it had."""
        values: dict[Ref, Any] = dict(self._weights)
        values |= {each.name: self._load(inputs, each.name) for each in self.graph.sources if each.name not in values}
        for node in self.graph.nodes:
            results = self.engine.prepare(node)(operands_of(node, values))
            values |= {ref: value for ref, value in zip(node.outputs, results, strict=True) if ref is not None}
        return self.beside(values)

    @torch.inference_mode()
    def beside(self, values: Mapping[Ref, torch.Tensor]) -> dict[Ref, TensorBound]:
        """The bounds for a pass whose values are known; those of weights are not read."""
        balls, least = dict(self._held), dict(self._least)
        found: dict[Ref, TensorBound] = {}
        for reading in self._readings:
            for ref in reading.refs:
                if ref not in balls:
                    balls[ref] = self._ball(ref, values[ref])
                    least[ref] = least_of(balls[ref])
            rules = reading.ordinary
            is_ordinary = rules is not None and all(least[ref] >= rules.least for ref in reading.refs)
            results = self._ordinary(reading, balls) if is_ordinary else None
            found |= reading.results(balls, values, results)
        return found

    def _ordinary(self, reading: OperatorReading, balls: Mapping[Ref, Ball]) -> list[torch.Tensor] | None:
        """Values and radii by the rules for ordinary numbers; `None` where some were not."""
        operands = reading.operands(balls)
        if reading.node.number not in self._programs:
            self._programs[reading.node.number] = self._program(reading, operands)
        program = self._programs[reading.node.number]
        *results, total = reading.by_ordinary_rules(*operands) if program is None else program(operands)
        return list(results) if float(total) < LIMIT else None

    def _program(self, reading: OperatorReading, operands: list[torch.Tensor]) -> TracedCall | None:
        """Operators that differ in their weights alone are traced once."""
        if reading.kind not in self._traced:
            with torch.inference_mode(False), torch.no_grad():
                examples = [each.clone() for each in operands]
                reading.by_ordinary_rules(*examples)  # makes the constants of the definition
                self._traced[reading.kind] = trace(reading.by_ordinary_rules, examples)
        module = self._traced[reading.kind]
        fixed = {place: operands[place] for place, ref in enumerate(reading.refs) if ref in self._held}
        return None if module is None else TracedCall(module, fixed)

    def _load(self, bindings: Mapping[Ref, Tensor], name: Ref) -> torch.Tensor:
        if name not in bindings:
            raise MalformedError(f"{name} is not bound")
        return self.engine.load(bindings[name])

    def _ball(self, ref: Ref, value: torch.Tensor) -> Ball:
        spec, value = self._specs[ref], value.detach()
        return Ball(Value(value.float() if spec.is_float and spec.dtype != WIDE else value, spec.dtype))


class OperatorReading:
    """One operator with its algebras: for all numbers, and for ordinary ones if its dtypes allow them.

    `sums` says that it is read on magnitudes.
    """

    def __init__(
        self, node: Node, specs: Mapping[Ref, TensorSpec], precision: Precision, model: Model, keeps_bounds: bool
    ) -> None:
        self.node, self.operator, self.refs = node, operator(node.operator), tuple(dict.fromkeys(node.refs))
        self.outputs = [ref for ref, _ in float_results(node)]
        given = [specs[ref] for ref in self.refs]
        dtypes = [spec.dtype for spec in given]
        is_wide = WIDE in (*dtypes, *(spec.dtype for spec in node.results if spec))
        reference = "F64" if is_wide else "F32"
        self.balls = algebra_of(self.operator, dtypes, precision, model, library=QUICK, reference=reference)
        self.ordinary = (
            None if is_wide else OrdinaryBalls(*(getattr(self.balls, each.name) for each in fields(self.balls)))
        )
        self.sums = keeps_bounds and _is_sum(node, dtypes)
        places = {ref: place for place, ref in enumerate(self.refs)}
        shape = {name: fetch(operand, places) for name, operand in node.operands.items()}
        self.kind = (node.operator, repr(shape), repr(node.attributes), tuple(given), node.results)
        self.dtypes = dtypes

    def operands(self, balls: Mapping[Ref, Ball]) -> list[torch.Tensor]:
        """The arrays that the definition is read on."""
        return [balls[ref].size if self.sums else balls[ref].array for ref in self.refs]

    def by_ordinary_rules(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Value and radius of each float result, and the number that tells whether they are bounds."""
        assert self.ordinary is not None
        self.ordinary.seen.clear()
        least = 0.0 if self.sums else -math.inf
        pairs = zip(self.refs, arrays, self.dtypes, strict=True)
        balls = {ref: Ball(Value(array, dtype), None, least) for ref, array, dtype in pairs}
        results = self.operator.read(self.ordinary, self._arguments(balls))
        found = [part for ball in self._floats(results) for part in (ball.array, self.ordinary.radius(ball))]
        return (*found, self.ordinary.total())

    def results(
        self, balls: Mapping[Ref, Ball], values: Mapping[Ref, torch.Tensor], found: list[torch.Tensor] | None
    ) -> dict[Ref, TensorBound]:
        """The bounds by reference: those `found`, or, if there are none, by the rules for all numbers."""
        refs = self.outputs
        if found is None:
            results = self._floats(read(self.operator, self.balls, self._arguments(balls)))
            return {ref: TensorBound(x.array, self.balls.radius(x)) for ref, x in zip(refs, results, strict=True)}
        if self.sums:
            return {refs[0]: TensorBound(values[refs[0]], found[1])}
        triples = zip(refs, found[::2], found[1::2], strict=True)
        return {ref: TensorBound(value, radius) for ref, value, radius in triples}

    def _arguments(self, balls: Mapping[Ref, Ball]) -> dict[str, Any]:
        return {**operands_of(self.node, balls), **self.node.attributes}

    def _floats(self, results: Sequence[Ball | None]) -> list[Ball]:
        pairs = zip(self.node.outputs, results, strict=True)
        return [ball for ref, ball in pairs if ref in self.outputs and ball is not None]


def _weights(graph: Graph) -> Iterator[Ref]:
    return (each.name for each in graph.sources if isinstance(each, Constant) or each.role is Role.WEIGHT)


def _moves(node: Node) -> bool:
    """Whether the results are elements of operands, and nothing else: those are exact on every device."""
    known = operator(node.operator)
    numbers = any(each.kind.startswith(("Scalar", "float")) for each in known.parameters)
    return known.exactness is Exactness.MOVES and not numbers


def _is_sum(node: Node, dtypes: Collection[str]) -> bool:
    scales = [node.attributes.get(name, 1) for name in ("alpha", "beta")]
    return node.operator in SUMS and set(dtypes) == {"F32"} and scales[0] == 1 and scales[1] in (0, 1)
