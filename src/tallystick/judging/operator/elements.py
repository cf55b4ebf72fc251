"""The bounds of a few elements of an operator's results.

`bound` computes a whole result. Here a definition is read over lazy tensors: only the named elements are computed, from
only those elements of the operands that they depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tallystick.judging.operator.lazy_algebra import LazyAlgebra, LazyTensor
from tallystick.judging.operator.places import Places
from tallystick.operators.balls.ball import Ball
from tallystick.operators.balls.balls import Balls
from tallystick.operators.balls.bound import Argument, ResultBound, bound
from tallystick.operators.definition import Operator
from tallystick.operators.precision import PLAIN, Precision
from tallystick.operators.rounding import DETERMINISTIC, Model


def bound_at(
    operator: Operator,
    arguments: Mapping[str, Argument],
    places: Sequence[Places | None],
    precision: Precision = PLAIN,
    model: Model = DETERMINISTIC,
    chunk: int = 0,
) -> tuple[ResultBound | None, ...]:
    """The bounds at flat `places`, I64[n] for each result or `None`, as vectors; computes `chunk` elements at a time.

    Values and radii equal those of `bound` except for the order in which float64 sums are formed. Raises
    `MalformedError` if the arguments do not fit together.
    """

    def define(balls: Balls, **given: Any) -> tuple[Ball | None, ...]:
        lazy = LazyAlgebra(balls)
        results = operator.read(lazy, {name: _loaded(lazy, value) for name, value in given.items()})
        pairs = zip(results, places, strict=True)
        return tuple(
            None if tensor is None or where is None else _joined(balls, tensor, where, chunk) for tensor, where in pairs
        )

    return bound(replace(operator, define=define), arguments, precision, model)


def _joined(balls: Balls, tensor: LazyTensor, places: Places, chunk: int) -> Ball:
    pieces = np.split(places, range(chunk, len(places), chunk)) if chunk else [places]
    return balls.concat([tensor.at(piece) for piece in pieces], 0)


def _loaded(lazy: LazyAlgebra, value: Any) -> Any:
    if isinstance(value, Ball):
        return lazy.load(value)
    if isinstance(value, tuple) and any(isinstance(each, Ball) for each in value):
        return tuple(_loaded(lazy, each) for each in value)
    return value
