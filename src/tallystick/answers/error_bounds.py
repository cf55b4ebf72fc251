"""A slice of a graph run on balls: each output ball contains every result of an honest evaluation of the slice.

For a single operator, `operators.balls.bound` bounds the distance of a result from the exact one. Here radii are
propagated from operator to operator, so only the inputs of the slice must be known. Rules and proofs: docs/bounds.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.graphs.engine import Arguments
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.operators.arrays import NUMPY
from tallystick.operators.balls.ball import Ball
from tallystick.operators.balls.balls import Balls
from tallystick.operators.balls.bound import algebra_of, read
from tallystick.operators.precision import UNSTATED, Precision
from tallystick.operators.registry import operator
from tallystick.operators.rounding import DETERMINISTIC, Model
from tallystick.tensors.tensor import Tensor


@dataclass(frozen=True)
class BoundedValue:
    """The exact result in float64, and the largest error of an honest evaluation per element; equal shapes."""

    centre: npt.NDArray[np.float64]
    radius: npt.NDArray[np.float64]


def bounded_outputs(
    graph: Graph, bindings: Mapping[Ref, Tensor], precision: Precision = UNSTATED
) -> dict[str, BoundedValue]:
    """The outputs of `graph` by name, from exact inputs.

    Raises `MalformedError` if a binding is missing or has another spec, or if operands do not fit together.
    """
    wanted = {output.value: output.name for output in graph.outputs}
    found: dict[str, BoundedValue] = {}

    def keep(node: Node, _: Arguments, results: tuple[Any, ...]) -> None:
        for ref, ball in zip(node.outputs, results, strict=True):
            if ref in wanted and ball is not None:
                found[wanted[ref]] = _bounded(ball)

    execute(graph, bindings, BallEngine(precision), keep)
    return found


@dataclass(frozen=True)
class BallEngine:
    """An engine whose arrays are balls: a centre and a radius per element."""

    precision: Precision = UNSTATED
    model: Model = DETERMINISTIC
    name: Final[str] = field(default="balls", init=False)

    def load(self, tensor: Tensor) -> Ball:
        """The elements as balls of radius 0."""
        return Balls(NUMPY, self.precision, self.model).load(tensor)

    def unload(self, array: Ball, dtype: str) -> Tensor:
        """The centres; F64 for every float dtype."""
        return Balls(NUMPY, self.precision, self.model).values.unload(array.centre)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """The definition of the node's operator, read as balls; raises `MalformedError` for an unknown one."""
        known = operator(node.operator)

        def run(arguments: Arguments) -> tuple[Any, ...]:
            dtypes = [ball.dtype for ball in _balls(arguments.values())]
            balls = algebra_of(known, dtypes, self.precision, self.model)
            with NUMPY.quiet():
                return read(known, balls, {**node.attributes, **arguments})

        return run


def _balls(arguments: Iterable[Any]) -> Iterator[Ball]:
    for argument in arguments:
        for item in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(item, Ball):
                yield item


def _bounded(ball: Ball) -> BoundedValue:
    centre = np.asarray(NUMPY.storage(ball.array), np.float64)
    return BoundedValue(centre, np.array(np.broadcast_to(np.asarray(ball.width, np.float64), centre.shape)))
