"""Whether an opened layer is that of the promised weights, or one whose weights are held in fewer bits.

In 16 bits, a layer with weights of 8 bits lies closer to the promised one than rounding may, so no limit on a distance
tells the two apart. But the direction is known. The verifier computes both layers exactly, from the opened input, and
projects the claimed rows onto the line from the promised layer (0) to the cheaper one (1). Rounding knows nothing of
this line and lies near 0: at most 0.06 was seen with either attention, and cheaper layers at 0.98 and more
(SmolLM2-135M-Instruct in BF16, 84 tokens, two layers). Rows count by their direction, so that no large row decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.graphs.graph import Graph, Ref
from tallystick.operators.definition import Exactness
from tallystick.operators.registry import operator
from tallystick.tensors.fewer_bits import FEWER_BITS, in_fewer_bits
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.tolerance import Finding

Rows = npt.NDArray[np.float64]
CHEAPER: Final = ("int8 by row", "int8 in groups of 64", "int4 by row")
"""The formats of weights that are tried."""
HALFWAY: Final = 0.5
"""Beyond it, the claimed rows are those of the cheaper layer rather than those of the promised one."""
ERRORS: Final = 6.0
"""So many standard errors have to fit between the promised layer and half the way, or the two are not told apart."""

FEWEST: Final = 16
"""Fewer rows do not show how much the place varies from row to row."""


@dataclass(frozen=True)
class Projected:
    """Where rows lie between two layers, 0 for the promised and 1 for the cheaper one, with the standard error."""

    place: float
    error: float

    @property
    def tells(self) -> bool:
        """Whether rounding moves the place so little that the two layers are told apart."""
        return self.error * ERRORS < HALFWAY


def project(claimed: Rows, promised: Rows, cheaper: Rows) -> Projected:
    """The place of claimed rows [tokens, width]; the error counts rows as independent."""
    size = np.linalg.norm(promised, axis=1, keepdims=True)
    scale = np.where(size > 0.0, size, 1.0)
    gap, way = (claimed - promised) / scale, (cheaper - promised) / scale
    along, length = (gap * way).sum(axis=1), (way * way).sum(axis=1)
    total = float(length.sum())
    if len(promised) < FEWEST or not total > 0.0:
        return Projected(0.0, math.inf)
    place = float(along.sum()) / total
    return Projected(place, float(np.sqrt(np.square(along - place * length).sum())) / total)


def compare_with_cheaper(
    claimed: Rows,
    promised: Rows,
    graph: Graph,
    bindings: Mapping[Ref, Tensor],
    exactly: Callable[[Mapping[Ref, Tensor]], Rows],
) -> Iterator[tuple[str, Projected]]:
    """For each format that changes the layer, its name and where the claimed rows lie; `exactly` runs the layer."""
    weights = matrices_of(graph, bindings)
    for name in CHEAPER if weights else ():
        cheaper = {ref: in_fewer_bits(bindings[ref], FEWER_BITS[name]) for ref in weights}
        rows = exactly({**bindings, **cheaper})
        if np.isfinite(rows).all() and np.isfinite(promised).all():
            yield name, project(claimed, promised, rows)


def matrices_of(graph: Graph, bindings: Mapping[Ref, Tensor]) -> list[Ref]:
    """The bound matrices of floats that operators multiply by, directly or transposed."""
    sums = (node for node in graph.nodes if operator(node.operator).exactness is Exactness.ACCUMULATES)
    read = {ref for node in sums for ref in node.refs}
    moved = [node for node in graph.nodes if operator(node.operator).exactness is Exactness.MOVES]
    for node in reversed(moved):
        if any(ref in read for ref in node.outputs):
            read.update(node.refs)
    specs = graph.specs()
    return sorted(ref for ref in read & bindings.keys() if specs[ref].is_float and len(specs[ref].shape) == 2)


def finding_of(where: str, name: str, found: Projected) -> Finding:
    """The place as a finding: beyond half the way it disagrees."""
    detail = f"of the way from the promised layer to one with weights in {name}"
    return Finding(max(found.place, 0.0), HALFWAY, "layer", f"{where}, towards {name}", detail)
