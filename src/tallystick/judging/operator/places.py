"""Converts between flat places of elements in row-major order and indices along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.operators.algebra import Axes

Places: TypeAlias = npt.NDArray[np.int64]
"""Flat places of elements, in row-major order."""


def coordinates(places: Places, shape: tuple[int, ...]) -> list[Places]:
    """The index along every axis of elements at flat `places`."""
    found, rest = [], places
    for side in reversed(shape):
        rest, index = np.divmod(rest, max(side, 1))
        found.append(index)
    return found[::-1]


def flat_places(found: Sequence[Places], shape: tuple[int, ...], count: int) -> Places:
    """The flat places of `count` elements with these indices along every axis."""
    flat = np.zeros(count, np.int64)
    for index, side in zip(found, shape, strict=True):
        flat = flat * side + index
    return flat


def broadcast_places(places: Places, shape: tuple[int, ...], source: tuple[int, ...]) -> Places:
    """For elements of a value of `shape`, their places in the value of shape `source` that is broadcast to it."""
    if shape == source:
        return places
    found = coordinates(places, shape)[len(shape) - len(source) :]
    return flat_places([i * (side != 1) for i, side in zip(found, source, strict=True)], source, len(places))


def reduced_places(places: Places, shape: tuple[int, ...], axes: Axes) -> Places:
    """For elements of a reduction of `shape` along `axes`, the places of their terms, I64[elements, terms]."""
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    return lines_along(shape, kept, coordinates(places, tuple(shape[i] for i in kept)), axes, len(places))


def row_and_column(places: Places, shape: tuple[int, ...], axis: int) -> tuple[Places, Places]:
    """For each element, the number of its row along `axis` and its place in that row."""
    found, kept = coordinates(places, shape), shape[:axis] + shape[axis + 1 :]
    return flat_places(found[:axis] + found[axis + 1 :], kept, len(places)), found[axis]


def lines_along(shape: tuple[int, ...], fixed: Axes, at: Sequence[Places], along: Axes, count: int) -> Places:
    """The places of all elements along some axes, one row for each of `count` index sets of the `fixed` axes."""
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    inner = np.zeros(1, np.int64)
    for axis in along:
        inner = (inner[:, None] + np.arange(shape[axis]) * steps[axis]).reshape(-1)
    start = np.zeros(count, np.int64)
    for axis, index in zip(fixed, at, strict=True):
        start = start + index * steps[axis]
    return start[:, None] + inner
