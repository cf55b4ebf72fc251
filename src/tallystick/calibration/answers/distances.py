"""Limits on the distance of honest rows, from rows of the same tokens that honest stacks computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.answers.distance_limits import MeasuredModels, Place, RowLimits

Rows: TypeAlias = Mapping[int, npt.NDArray[np.floating[Any]]]
"""Hidden states and logits by layer, each [tokens, width], as a fingerprint summarises them."""
RUNS: Final = (1, 8, 32, 128)
"""The lengths of runs of tokens that have limits of their own: short runs vary more."""
BLOCK: Final = 32
"""Longer runs are compared by blocks of so many tokens, as those of the standard fingerprints are."""
MARGIN: Final = {"F32": 8.0, "BF16": 1.5, "F16": 1.5}
"""How far limits lie above the largest honest distance: precisions of 16 bits leave little room below the cheats."""
LEAST: Final = {"F32": 1e-5, "BF16": 1e-4, "F16": 1e-5}
"""No limit is set lower: another machine may always differ in a last bit that no stack here differed in."""


class Class(NamedTuple):
    """Rows that have limits of their own: runs of `tokens` at a place; of blocks, those up to `layer_max`."""

    place: Place
    layer_max: int
    tokens: int


@dataclass(frozen=True)
class SeenRuns:
    """How many runs were compared, and the largest distance of one."""

    runs: int = 0
    largest: float = 0.0

    def __add__(self, other: SeenRuns) -> SeenRuns:
        return SeenRuns(self.runs + other.runs, max(self.largest, other.largest))


def compare_answer(claimed: Rows, own: Rows, final: int) -> dict[Class, SeenRuns]:
    """What one answer shows, from rows of the layers that both have; `final` is the layer number of the final norm."""
    found: dict[Class, SeenRuns] = {}
    for layer in sorted(set(claimed) & set(own)):
        place: Place = "block" if layer < final else "final" if layer == final else "logits"
        for tokens in RUNS:
            distances = distances_of_runs(claimed[layer], own[layer], tokens)
            if distances.size:
                found[Class(place, layer if place == "block" else 0, tokens)] = SeenRuns(
                    distances.size, float(distances.max())
                )
    return found


def distances_of_runs(
    claimed: npt.NDArray[np.floating[Any]], own: npt.NDArray[np.floating[Any]], tokens: int
) -> npt.NDArray[np.float64]:
    """The distance of every full run of `tokens` rows, one after the other: F64[runs]."""
    count, block = len(own) // tokens, min(tokens, BLOCK)
    rows = count * tokens
    gaps = np.square(claimed[:rows].astype(np.float64) - own[:rows]).sum(axis=1).reshape(-1, block).sum(axis=1)
    sizes = np.square(own[:rows].astype(np.float64)).sum(axis=1).reshape(-1, block).sum(axis=1)
    return np.asarray(np.sqrt((gaps / sizes).reshape(count, tokens // block).mean(axis=1)))


def add_up(answers: Iterable[Mapping[Class, SeenRuns]]) -> dict[Class, SeenRuns]:
    """What several answers show."""
    total: dict[Class, SeenRuns] = {}
    for answer in answers:
        for each, seen in answer.items():
            total[each] = total.get(each, SeenRuns()) + seen
    return total


def at_depths(seen: Mapping[Class, SeenRuns], layers: int) -> dict[Class, SeenRuns]:
    """The same runs, those of a block at the next of the `depths_of` a model of `layers` blocks."""
    depths = depths_of(layers)
    return add_up(
        {each._replace(layer_max=min(d for d in depths if d >= each.layer_max)): runs} for each, runs in seen.items()
    )


def depths_of(layers: int) -> tuple[int, ...]:
    """The blocks up to which limits hold: sixths of the depth, that of the standard fingerprints, and the last one.

    >>> depths_of(30)
    (0, 5, 10, 15, 20, 25, 29)
    """
    return tuple(sorted({*range(0, layers, max(1, layers // 6)), layers // 3, layers - 1}))


def row_limits(seen: Mapping[Class, SeenRuns], models: MeasuredModels) -> tuple[RowLimits, ...]:
    """Limits for `models` from what honest answers showed: the largest distance times `MARGIN`.

    Those of a block hold for all blocks before it, so they are at least as large as the limits of those.
    """
    found = []
    for each in sorted(seen):
        below = [other for other in seen if other[::2] == each[::2] and other.layer_max <= each.layer_max]
        total = sum((seen[other] for other in below), SeenRuns())
        limit = max(LEAST[models.dtype], MARGIN[models.dtype] * total.largest)
        found.append(
            RowLimits(
                **models.model_dump(),
                place=each.place,
                tokens=each.tokens,
                layer_max=each.layer_max if each.place == "block" else None,
                largest=round_up(limit),
                honest=total.runs,
                honest_largest=round_up(total.largest),
            )
        )
    return tuple(found)


def round_up(value: float) -> float:
    """Three digits, none made smaller."""
    if value == 0.0:
        return 0.0
    digits = float(f"{value:.2e}")
    return digits if digits >= value else float(f"{math.nextafter(value, math.inf) * 1.005:.2e}")
