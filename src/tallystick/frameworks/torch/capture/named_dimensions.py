"""Captures a model for a range of sizes: a template whose sizes are polynomials of named dimensions.

The model is captured at neighbouring sizes of every dimension. Integers that differ between these graphs become
polynomials of at most first degree in each dimension, computed from the differences. Two further captures at other
sizes must agree. Anything else that depends on a size is refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from tallystick.commitments.encoding import Json, decode
from tallystick.errors import TallyError, UnavailableError, UsageError
from tallystick.frameworks.torch.capture.model import capture
from tallystick.graphs.encoding import graph_bytes
from tallystick.graphs.template import Template

Sizes: TypeAlias = Mapping[str, int]
Corner: TypeAlias = tuple[int, ...]
DIMENSIONS_MAX: Final = 3


def capture_template(
    model: nn.Module,
    kwargs: Mapping[str, Any],
    dynamic: Mapping[str, Mapping[int, str]],
    ranges: Mapping[str, tuple[int, int]],
) -> Template:
    """The graphs of `model` for every size in `ranges`, as one template.

    Args:
        model: as for `capture`.
        kwargs: example inputs by name.
        dynamic: the dimension of each dynamic axis, by input: `{"input_ids": {0: "batch", 1: "length"}}`.
        ranges: the smallest and the largest size of each dimension; at least 4 sizes apart.

    Raises:
        UsageError: a dimension without a range, or too small a range.
        UnavailableError: the model cannot be captured, or is another program at other sizes.
    """
    names = sorted({name for axes in dynamic.values() for name in axes.values()})
    _check_ranges(names, ranges)

    def document(sizes: Sizes) -> Json:
        return decode(graph_bytes(capture(model, (), _resized(kwargs, dynamic, sizes)).graph), "graph")

    low = {name: max(ranges[name][0], 2) for name in names}  # PyTorch captures other graphs for sizes 0 and 1
    corners = list(itertools.product((0, 1), repeat=len(names)))
    seen = [document({name: low[name] + step for name, step in zip(names, corner, strict=True)}) for corner in corners]
    fitted = _merged(seen, lambda values: _polynomial(values, corners, names, [low[name] for name in names]))
    assert isinstance(fitted, dict)
    template = Template({name: ranges[name] for name in names}, fitted)
    _check_elsewhere(template, document, low)
    return template


def _check_ranges(names: Sequence[str], ranges: Mapping[str, tuple[int, int]]) -> None:
    if set(names) != ranges.keys() or not 0 < len(names) <= DIMENSIONS_MAX:
        raise UsageError(f"1 to {DIMENSIONS_MAX} dimensions with a range each are needed")
    narrow = [name for name in names if ranges[name][1] - max(ranges[name][0], 2) < DIMENSIONS_MAX]
    if narrow:
        raise UsageError(f"the range of {narrow[0]} is too small to be worth a name")


def _check_elsewhere(template: Template, document: Callable[[Sizes], Json], low: Sizes) -> None:
    for places in (2, 3):
        sizes = {name: low[name] + places + index % 2 for index, name in enumerate(sorted(low))}
        sizes = {name: min(size, template.dimensions[name][1]) for name, size in sizes.items()}
        try:
            same = decode(graph_bytes(template.bind(**sizes)), "graph") == document(sizes)
        except TallyError as error:
            raise UnavailableError(f"the model is another program at {dict(sizes)}: {error}") from None
        if not same:
            raise UnavailableError(f"the model is another program at {dict(sizes)}")


def _resized(kwargs: Mapping[str, Any], dynamic: Mapping[str, Mapping[int, str]], sizes: Sizes) -> dict[str, Any]:
    resized = dict(kwargs)
    for name, axes in dynamic.items():
        shape = [sizes[axes[axis]] if axis in axes else side for axis, side in enumerate(kwargs[name].shape)]
        resized[name] = torch.ones(shape, dtype=kwargs[name].dtype)
    return resized


def _merged(values: Sequence[Json], fit: Callable[[Sequence[int]], str]) -> Json:
    """One document from several that differ only in integers; `fit` gives the formula for each such place."""
    first = values[0]
    if all(value == first for value in values):
        return first
    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) == len(values) and all(each.keys() == objects[0].keys() for each in objects):
        return {key: _merged([each[key] for each in objects], fit) for key in objects[0]}
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values) and all(len(each) == len(lists[0]) for each in lists):
        return [_merged(parts, fit) for parts in zip(*lists, strict=True)]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return fit(values)  # type: ignore[arg-type]
    raise UnavailableError(f"the model is another program at other sizes: {first!r:.60} there, and something else here")


def _polynomial(values: Sequence[int], corners: Sequence[Corner], names: Sequence[str], low: Sequence[int]) -> str:
    """The polynomial, of first degree in each name, that takes `values` at the corners of the cube at `low`."""
    held = dict(zip(corners, values, strict=True))
    terms: dict[Corner, int] = dict.fromkeys(corners, 0)
    for corner in corners:
        difference = sum((-1) ** (sum(corner) - sum(part)) * held[part] for part in _below(corner))
        for part in _below(corner):  # difference · Π (name − low) over the names of the corner
            rest = math.prod(-low[i] for i, (one, other) in enumerate(zip(corner, part, strict=True)) if one > other)
            terms[part] += difference * rest
    written = [
        _term(factor, [name for name, bit in zip(names, part, strict=True) if bit]) for part, factor in terms.items()
    ]
    return "".join(term for term in reversed(written) if term).removeprefix("+") or "0"


def _below(corner: Corner) -> list[Corner]:
    return list(itertools.product(*(range(bit + 1) for bit in corner)))


def _term(factor: int, names: Sequence[str]) -> str:
    if not factor:
        return ""
    shown = [str(abs(factor))] if abs(factor) != 1 or not names else []
    return ("-" if factor < 0 else "+") + "*".join([*shown, *names])
