"""Bounds of all operators of a graph beside a pass on PyTorch: values and radii in F32, nothing goes through NumPy.

`programs.operators.balls.bound` computes an exact result and how far an honest one may be from it, in F64 on NumPy; for
a whole graph that takes some twenty passes. Here the same definitions are read in F32 on PyTorch. By the same rules the
rounding of this reading is that of one more evaluation (docs/bounds.md), so a radius covers the difference between two
honest devices: it is twice as large for F32, and hardly larger for BF16. Judges do not use it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

import torch
from torch.fx import GraphModule

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.kernels import QUICK
from tallystick.engines.torch.traced import TracedCall, trace
from tallystick.programs.graph import Constant, Graph, Node, Ref, Role, float_results, operands_of
from tallystick.programs.operators.balls.ball import Ball
from tallystick.programs.operators.balls.bound import algebra_of, read
from tallystick.programs.operators.balls.ordinary import DTYPES, LARGEST, LIMIT, OrdinaryBalls
from tallystick.programs.operators.definition import Exactness, operator
from tallystick.programs.operators.precision import FORMATS, PLAIN, Precision
from tallystick.programs.operators.rounding import DETERMINISTIC, Model
from tallystick.programs.operators.values import Value

WIDE: Final = "F64"
ALL_BITS: Final = 2**31 - 1
MAGNITUDES: Final = "magnitudes"
NORMS: Final = "norms"
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

    `bindings` holds at least the weights and constants, and may hold more. With `products="norms"` the radii of `SUMS`
    come from ‖x‖₂‖w‖₂ in place of Σ|x||w|: several times as large, and without another product. Raises `MalformedError`
    for an operator that is not on the allow-list, or a weight that is missing.
    """

    def __init__(
        self,
        graph: Graph,
        bindings: Mapping[Ref, Tensor],
        precision: Precision = PLAIN,
        model: Model = DETERMINISTIC,
        device: str = "cpu",
        products: str = MAGNITUDES,
    ) -> None:
        if products not in (MAGNITUDES, NORMS):
            raise MalformedError(f"products are bounded by {MAGNITUDES} or {NORMS}, not {products[:40]!r}")
        self.graph, self.engine = graph, TorchEngine(device)
        self._specs, self._traced = graph.specs(), dict[Any, GraphModule | None]()
        fixed = (each.name for each in graph.sources if isinstance(each, Constant) or each.role is Role.WEIGHT)
        self._weights = {name: self._load(bindings, name) for name in fixed}
        self._held = {name: self._ball(name, value) for name, value in self._weights.items()}
        self._least = {name: _least(ball) for name, ball in self._held.items()}
        settings = (precision, model, self.engine.name == "torch", products == NORMS)
        bounded = (node for node in graph.nodes if float_results(node) and not _moves(node))
        self._readings = [OperatorReading(node, self._specs, *settings) for node in bounded]
        self._programs: dict[tuple[int, tuple[bool, ...]], TracedCall | None] = {}

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
                    least[ref] = _least(balls[ref])
            found |= reading.results(balls, values, self._ordinary(reading, balls, least))
        return found

    def _ordinary(
        self, reading: OperatorReading, balls: Mapping[Ref, Ball], least: Mapping[Ref, float]
    ) -> list[torch.Tensor] | None:
        """Values and radii by the rules for ordinary numbers; `None` where some were not."""
        if reading.ordinary is None or not all(least[ref] > 0 for ref in reading.refs):
            return None
        tiny = tuple(least[ref] < reading.ordinary.least for ref in reading.refs)
        operands, key = reading.operands(balls), (reading.node.number, tiny)
        if key not in self._programs:
            self._programs[key] = self._program(reading, operands, tiny)
        program = self._programs[key]
        *results, total = reading.by_ordinary_rules(tiny, *operands) if program is None else program(operands)
        return list(results) if float(total) < LIMIT else None

    def _program(
        self, reading: OperatorReading, operands: list[torch.Tensor], tiny: tuple[bool, ...]
    ) -> TracedCall | None:
        """Operators that differ in their weights alone are traced once."""
        kind, function = (*reading.kind, tiny), partial(reading.by_ordinary_rules, tiny)
        if kind not in self._traced:
            with torch.inference_mode(False), torch.no_grad():
                examples = [each.clone() for each in operands]
                function(*examples)  # makes the constants of the definition
                self._traced[kind] = trace(function, examples)
        module = self._traced[kind]
        fixed = {place: operands[place] for place, ref in enumerate(reading.refs) if ref in self._held}
        return None if module is None else TracedCall(module, fixed, regroups=reading.sums)

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
        self,
        node: Node,
        specs: Mapping[Ref, TensorSpec],
        precision: Precision,
        model: Model,
        keeps_bounds: bool,
        norms: bool = False,
    ) -> None:
        self.node, self.operator, self.refs = node, operator(node.operator), tuple(dict.fromkeys(node.refs))
        self.outputs = [ref for ref, _ in float_results(node)]
        given = [specs[ref] for ref in self.refs]
        dtypes = [spec.dtype for spec in given]
        is_wide = WIDE in (*dtypes, *(spec.dtype for spec in node.results if spec))
        reference = "F64" if is_wide else "F32"
        self.balls = algebra_of(self.operator, dtypes, precision, model, library=QUICK, reference=reference)
        self.sums = keeps_bounds and _is_sum(node, dtypes)
        settings = {each.name: getattr(self.balls, each.name) for each in fields(self.balls)}
        self.ordinary = None if is_wide else OrdinaryBalls(**settings, magnitudes=self.sums, norms=norms and self.sums)
        places = {ref: place for place, ref in enumerate(self.refs)}
        shape = operands_of(node, places)
        self.kind = (node.operator, repr(shape), repr(node.attributes), tuple(given), node.results)
        self.dtypes = dtypes

    def operands(self, balls: Mapping[Ref, Ball]) -> list[torch.Tensor]:
        """The arrays that the definition is read on."""
        return [balls[ref].size if self.sums else balls[ref].array for ref in self.refs]

    def by_ordinary_rules(self, tiny: Sequence[bool], *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Value and radius of each float result, only the radius of sums, and whether they are bounds, as a number.

        `tiny` names the operands with elements below the least that the rules are for.
        """
        assert self.ordinary is not None
        self.ordinary.seen.clear()
        least = 0.0 if self.sums else -math.inf
        given = zip(self.refs, arrays, self.dtypes, tiny, strict=True)
        balls = {ref: self.ordinary.operand(Ball(Value(x, dtype), None, least), few) for ref, x, dtype, few in given}
        results = self.operator.read(self.ordinary, self._arguments(balls))
        pairs = [(ball.array, self.ordinary.radius(ball)) for ball in self._floats(results)]
        found = [part for pair in pairs for part in pair[self.sums :]]
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
            return {refs[0]: TensorBound(values[refs[0]], found[0])}
        triples = zip(refs, found[::2], found[1::2], strict=True)
        return {ref: TensorBound(value, radius) for ref, value, radius in triples}

    def _arguments(self, balls: Mapping[Ref, Ball]) -> dict[str, Any]:
        return {**operands_of(self.node, balls), **self.node.attributes}

    def _floats(self, results: Sequence[Ball | None]) -> list[Ball]:
        pairs = zip(self.node.outputs, results, strict=True)
        return [ball for ref, ball in pairs if ref in self.outputs and ball is not None]


def _least(x: Ball) -> float:
    """The smallest magnitude of an operand besides 0, infinite if there is none; 0 where the rules are not for it."""
    if x.dtype not in FORMATS or not x.array.numel():
        return math.inf
    if x.dtype not in DTYPES:
        return 0.0
    least, largest = torch.aminmax(x.size)
    if not float(largest) < LARGEST:
        return 0.0
    if float(least):
        return float(least)
    # the bits of magnitudes are in their order; one less, and without the sign, those of 0 are the largest
    bits = int((x.size.view(torch.int32) - 1).bitwise_and_(ALL_BITS).amin())
    return math.inf if bits == ALL_BITS else float(torch.tensor(bits + 1, dtype=torch.int32).view(torch.float32))


def _moves(node: Node) -> bool:
    """Whether the results are elements of operands, and nothing else: those are exact on every device."""
    known = operator(node.operator)
    numbers = any(each.kind.startswith(("Scalar", "float")) for each in known.parameters)
    return known.exactness is Exactness.MOVES and not numbers


def _is_sum(node: Node, dtypes: Collection[str]) -> bool:
    scales = [node.attributes.get(name, 1) for name in ("alpha", "beta")]
    return node.operator in SUMS and set(dtypes) == {"F32"} and scales[0] == 1 and scales[1] in (0, 1)
