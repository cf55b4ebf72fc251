"""Models of rounding that assume more than IEEE 754, for studies: bounds on how far a sum may be from the exact one.

* `Probabilistic(λ)`: γ̃_k(λ) Σ|t|. Assumes that rounding errors have mean zero given the earlier ones (Higham & Mary
  2019).
* `Variance(λ, summation)`: from ‖t‖₂. Assumes in addition that the terms minus their mean have random signs, and that
  the summation tree is the stated one.

Each bound holds for one element of a result with the stated confidence. The derivations are in docs/bounds.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.programs.operators.arrays import ArrayLibrary
from tallystick.programs.operators.precision import REFERENCE
from tallystick.programs.operators.rounding import Deterministic, RoundedSums, lifted, worst_factor

# The order in which the terms of a sum are added: the numbers of the summation tree that the variance bound needs.
#
# A tree over k leaves has an inner node for every addition. `Summation` assumes chains: the terms of each block of at
# most `block` terms are added one after the other, and then the block sums. A tree with shorter paths has a smaller
# error. Derivations are in docs/bounds.md.

Count = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tree:
    """Numbers of one tree, for each of several k.

    `depth` is the mean number of roundings of a term. `peak` is the largest eigenvalue, divided by k, of the matrix of
    the numbers of additions that terms i and j share. `coherent` is the norm of the subtree sizes divided by k.
    """

    depth: Count
    peak: Count
    coherent: Count


@dataclass(frozen=True)
class Summation:
    """Chains of at most `block` terms, then chains of at most `outer` sums, repeatedly; `None` is one chain.

    If there are several levels of `outer`, the outermost ones are full.
    """

    block: int | None = None
    outer: int | None = None

    def tree(self, terms: Any, products: bool) -> Tree:
        """The numbers for `terms` terms; with `products`, each term is itself rounded once."""
        k = np.maximum(np.asarray(terms, np.float64), 1.0)
        inside, once = np.ones_like(k), np.full_like(k, 1.0 if products else 0.0)
        depth, peak, sizes = once, once, once * k
        for level, length in enumerate(self._lengths(k)):
            adds = (length > 1) | (level == 0)
            depth = depth + np.where(adds, (length + 1) / 2, 0.0)
            peak = peak + np.where(adds, _chain_peak(length) * inside * length / k, 0.0)
            chains = np.ceil(k / (inside * length))
            sizes = sizes + np.where(adds, inside**2 * _chain_squares(length) * chains, 0.0)
            inside = inside * length
        return Tree(depth, peak, np.sqrt(sizes) / k)

    def _lengths(self, k: Count) -> list[Count]:
        """The lengths of chains, from the inside out."""
        inner = k if self.block is None else np.minimum(k, float(self.block))
        rest, outside = np.ceil(k / inner), []
        while self.outer is not None and (rest > self.outer).any():
            outside.append(np.where(rest > self.outer, float(self.outer), 1.0))
            rest = np.ceil(rest / outside[-1])
        return [inner, rest, *outside]


ANY_ORDER: Final = Summation()
BLOCKED: Final = Summation(256)
CASCADE: Final = Summation(16, 16)
"""PyTorch's kernels for plain sums: at most 16 terms to a partial sum, 16 of these to the next, finally 16 lanes."""


def growth(tree: Tree, confidence: float) -> Count:
    """G with P(|Σ δ_n D_n| > G u ‖d‖₂) ≤ 2 exp(−confidence), minimised over a grid of exponents.

    G = min over 0 < z < 1 of (confidence − (depth / 2 peak) ln(1 − z)) √(peak / z); every z gives a valid G.
    """
    z = _GRID.reshape((-1,) + (1,) * tree.depth.ndim)
    weight = tree.depth / (2 * tree.peak)
    return np.asarray(((confidence - weight * np.log1p(-z)) * np.sqrt(tree.peak / z)).min(axis=0))


_GRID: Final = 1.0 - np.geomspace(0.999, 0.001, 64)


def _chain_peak(length: Count) -> Count:
    """The largest eigenvalue of min(i, j) over a chain is 1 / 4 sin²(π / (4n + 2)) ≤ 4 (n + 1)² / π²; divided by n."""
    return np.asarray(4 * (length + 1) ** 2 / (math.pi**2 * length))


def _chain_squares(length: Count) -> Count:
    """Σ n² for n = 1 … length."""
    return np.asarray(length * (length + 1) * (2 * length + 1) / 6)


@dataclass(frozen=True)
class Probabilistic:
    """γ̃_k(λ) = exp(λ√k u + ku² / (1 − u)) − 1."""

    confidence: float = 6.0
    name: str = "probabilistic"

    @property
    def failure(self) -> float:
        """2 exp(−λ² (1 − u)² / 2), at the largest u of any format."""
        return 2 * math.exp(-((self.confidence * (1 - 2.0**-8)) ** 2) / 2)

    def spread(self, sums: RoundedSums, library: ArrayLibrary) -> Any:
        """γ̃_k(λ) Σ|t|, or γ_k Σ|t| if that is smaller."""
        k, u = sums.roundings, sums.unit
        likely = np.expm1(np.minimum(self.confidence * np.sqrt(k) * u + k * u**2 / (1 - u), 700.0))
        likely = likely + worst_factor(k, 0.0, sums.reference)
        return lifted(library, np.minimum(likely, worst_factor(k, u, sums.reference))) * sums.magnitude


@dataclass(frozen=True)
class Variance:
    """λ |S| g + G ‖t − mean‖₂, with g and G from the summation tree: `plain` for operators that only add up."""

    confidence: float = 6.0
    summation: Summation = BLOCKED
    plain: Summation = CASCADE
    name: str = "variance"

    @property
    def failure(self) -> float:
        """6 exp(−λ² / 2): once each for the mean part, the part about the mean, and errors of errors."""
        return 6 * math.exp(-(self.confidence**2) / 2)

    def spread(self, sums: RoundedSums, library: ArrayLibrary) -> Any:
        """The sum of both parts and of the second-order terms, or γ_k Σ|t| if that is smaller."""
        summation = self.plain if sums.plain else self.summation
        tree = summation.tree(sums.terms, sums.products)
        likely = (
            lifted(library, sums.unit * self.confidence * tree.coherent) * abs(sums.value())
            + lifted(library, sums.unit * growth(tree, self.confidence**2 / 2)) * self._about_mean(sums, library)
            + lifted(library, sums.unit * self._second_order(sums) + worst_factor(sums.roundings, 0.0, sums.reference))
            * sums.magnitude
        )
        certain = Deterministic().spread(sums, library)
        if not sums.signed:  # of ordinary numbers
            return library.xp.minimum(likely, certain)
        return library.xp.where(likely < certain, likely, certain)

    def _about_mean(self, sums: RoundedSums, library: ArrayLibrary) -> Any:
        """‖t − mean‖₂, at most ‖t‖₂; and that is taken where S is not known, because nothing may be subtracted."""
        if not sums.signed:
            return sums.norm() * lifted(library, (1 + _margin(sums)) ** 0.5)
        k, squares = np.maximum(np.asarray(sums.terms, np.float64), 1.0), sums.norm() ** 2
        square = squares - sums.value() ** 2 * lifted(library, 1 / k)
        return (0.5 * (square + abs(square)) + _margin(sums) * squares) ** 0.5

    def _second_order(self, sums: RoundedSums) -> Any:
        """λ√(λ² + 2 ln k) u k Σ|t| for partial sums that are themselves rounded, and λ√r Σ|t| for r rescalings."""
        k = np.maximum(sums.roundings, 1.0)
        nested = np.sqrt(self.confidence**2 + 2 * np.log(k)) * sums.unit * k
        return self.confidence * (nested + np.sqrt(sums.rescaling * sums.rescalings))


def _margin(sums: RoundedSums) -> Any:
    """The relative error of a computed sum of squares, and of the square of a sum."""
    if sums.reference == REFERENCE.unit:
        return 2.0**-50
    return 4 * (np.asarray(sums.terms, np.float64) + 4) * sums.reference
