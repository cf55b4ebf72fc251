"""Foreign hidden states with the fingerprint of the right ones, for whoever knows the directions beforehand.

A block's numbers are A·h, with h its hidden states in one vector and A of as many rows as there are numbers. For
foreign states g and the numbers y of the right ones, the forged states are A⁺y + c·(g − A⁺A·g): the smallest states
that have the numbers y, and the part of g that the directions do not see. A handful of numbers leaves almost all of g.

A fingerprint whose seed is fixed before the states therefore binds nobody who recomputes its numbers, and neither does
a root over such fingerprints. States under a root meet directions that are drawn afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.verdicts.fingerprints import direction_signs, position_signs

Rows = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]


def forge_states(foreign: Rows, right: Rows, layer: int, settings: FingerprintSettings) -> Rows:
    """States [tokens, d] that follow `foreign`, with the numbers and block norms of `right` in `layer`.

    A block needs more hidden values than it has numbers.
    """
    assert foreign.shape == right.shape
    assert settings.seed is not None
    tokens, size = right.shape
    directions = direction_signs(settings.seed, layer, settings.width, size).astype(np.float64)
    positions = position_signs(settings.seed, layer, settings.width, 0, tokens).astype(np.float64)
    blocks = _blocks(foreign, right, positions, settings)
    return np.concatenate([_forge_block(*each, directions) for each in blocks]).astype(np.float32)


def _blocks(
    foreign: Rows, right: Rows, positions: Numbers, settings: FingerprintSettings
) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    for first, count in settings.spans(len(right)):
        rows = slice(first, first + count)
        yield foreign[rows].astype(np.float64), right[rows].astype(np.float64), positions[rows]


def _forge_block(foreign: Numbers, right: Numbers, positions: Numbers, directions: Numbers) -> Numbers:
    gram = (positions.T @ positions) * (directions.T @ directions)

    def numbers(rows: Numbers) -> Numbers:
        return np.asarray(np.einsum("ik,ik->k", rows @ directions, positions))

    def smallest(wanted: Numbers) -> Numbers:
        """The smallest rows with these numbers, A⁺y."""
        return np.asarray((positions * np.linalg.solve(gram, wanted)) @ directions.T)

    seen, unseen = smallest(numbers(right)), foreign - smallest(numbers(foreign))
    left = _square(right) - _square(seen)
    return np.asarray(seen + np.sqrt(max(left, 0.0) / _square(unseen)) * unseen)


def _square(rows: npt.NDArray[Any]) -> float:
    return float(np.square(rows).sum())
