"""A few elements of an operator's results with their bounds, and which elements a nonce chooses.

`bound` computes all of a result; here a definition is read over parts, so that only the named elements are computed,
from only those elements of the operands that they need (`parts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tallystick.commitments.digests import digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import words
from tallystick.judging.leaf.parts import Part, Parts, Places
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
    """What `bound` gives at flat `places`, I64[n] for each result or `None`, as vectors; `chunk` at a time.

    Values and radii are those of the whole but for the order in which float64 sums are formed. Raises
    `MalformedError` where the arguments do not fit together.
    """

    def define(balls: Balls, **given: Any) -> tuple[Ball | None, ...]:
        parts = Parts(balls)
        results = operator.read(parts, {name: _loaded(parts, value) for name, value in given.items()})
        pairs = zip(results, places, strict=True)
        return tuple(
            None if part is None or where is None else _joined(balls, part, where, chunk) for part, where in pairs
        )

    return bound(replace(operator, define=define), arguments, precision, model)


def chosen_places(nonce: bytes, subject: str, size: int, count: int, named: int | None = None) -> Places:
    """At most `count` places of `size` elements by the words of a nonce, and the `named` one; ascending.

    All of them where there are no more. Each is drawn from all, so that one that is drawn twice counts once. The key is
    the digest of nonce and `subject`: whoever committed to the elements before the nonce was known cannot foresee them.
    """
    if size <= count:
        return np.arange(size)
    key = digest_bytes(digest("draw", encode({"nonce": nonce.hex(), "subject": subject})))
    drawn = (words(key, count) % np.uint64(size)).astype(np.int64)
    extra = [] if named is None else [named]
    return np.unique(np.concatenate([drawn, np.array(extra, np.int64)]))


def _joined(balls: Balls, part: Part, places: Places, chunk: int) -> Ball:
    pieces = np.split(places, range(chunk, len(places), chunk)) if chunk else [places]
    return balls.concat([part.at(piece) for piece in pieces], 0)


def _loaded(parts: Parts, value: Any) -> Any:
    if isinstance(value, Ball):
        return parts.load(value)
    if isinstance(value, tuple) and any(isinstance(each, Ball) for each in value):
        return tuple(_loaded(parts, each) for each in value)
    return value
