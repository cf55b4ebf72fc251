"""How often an honest replay has equal bucket hashes: P(agree) = exp(-Λ).

Two honest values fall into different buckets when an edge lies between them, which has probability |drift| /
gap. Over a model this adds up to Λ = Σ |w'ᵢ - wᵢ| / gapᵢ, the expected number of differing buckets. For
weights ~ N(0, sigma²) and a drift that is a share of each weight, Λ is proportional to the number of weights:
1176·r·N for `fp16_rne` with sigma = 0.02 and Gaussian drift. A value within the hint margin m of an edge is
covered by a hint, so with D = |drift| / gap only min(D, 2·(D - m)⁺) is left.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tallystick.verdicts.buckets import Mode

Drift = Literal["gaussian", "constant"]
Array = npt.NDArray[np.float64]
OCTAVES: Final = np.linspace(-30.0, 3.5, 8193)  # |w| / sigma as powers of two
_complementary_error = np.vectorize(math.erfc, otypes=[float])


def agreement_probability(
    relative_drift: float,
    count: int,
    mode: Mode | Literal["both"] = "fp16_rne",
    *,
    eps: float = 1e-6,
    sigma: float = 0.02,
    drift: Drift = "gaussian",
    hint_margin: float = 0.0,
) -> float:
    """P that all `count` weights ~ N(0, `sigma`²) keep their bucket under independent relative drift."""
    modes: tuple[Mode, ...] = ("fp16_rne", "grid") if mode == "both" else (mode,)
    rate = sum(mismatch_rate(relative_drift, each, eps, sigma, drift, hint_margin) for each in modes)
    return math.exp(-count * rate)


def mismatch_rate(
    relative_drift: float,
    mode: Mode = "fp16_rne",
    eps: float = 1e-6,
    sigma: float = 0.02,
    drift: Drift = "gaussian",
    hint_margin: float = 0.0,
) -> float:
    """The expected share of weights in another bucket, λ = Λ / N; valid while it is small."""
    sizes = sigma * np.exp2(OCTAVES)
    weights = np.exp(-((sizes / sigma) ** 2) / 2) * sizes
    moves = relative_drift * sizes / _gaps(sizes, mode, eps)
    crossing = 2 * _excess(moves, hint_margin, drift) - _excess(moves, 2 * hint_margin, drift)
    return float(np.average(crossing, weights=weights))


def _gaps(sizes: Array, mode: Mode, eps: float) -> Array:
    if mode == "grid":
        return np.full_like(sizes, eps)
    return np.exp2(np.maximum(np.frexp(sizes)[1] - 1.0, -14.0) - 10.0)


def _excess(moves: Array, margin: float, drift: Drift) -> Array:
    if drift == "constant":
        return np.maximum(moves - margin, 0.0)
    scaled = margin / np.maximum(moves, 1e-300)
    with np.errstate(under="ignore"):
        peak = np.exp(-(np.minimum(scaled, 1e150) ** 2) / 2) * math.sqrt(2 / math.pi)
        tail = _complementary_error(scaled / math.sqrt(2))
    excess: Array = np.maximum(moves * peak - margin * tail, 0.0)
    return excess
