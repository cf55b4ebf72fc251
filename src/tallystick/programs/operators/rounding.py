"""Models of rounding: how far a computed sum may be from the exact one, by the order of its terms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from tallystick.programs.operators.arrays import ArrayLibrary
from tallystick.programs.operators.precision import REFERENCE

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


# Three models of rounding: bounds on how much a computed sum of k terms may differ from the exact one.
#
# * `Deterministic`: γ_k Σ|t|, whatever the data and the order (Higham 2002, §3.1). Assumes only IEEE 754.
# * `Probabilistic(λ)`: γ̃_k(λ) Σ|t|. Assumes that rounding errors have mean zero given the earlier ones (Higham & Mary
#   2019).
# * `Variance(λ, summation)`: from ‖t‖₂. Assumes in addition that the terms minus their mean have random signs, and that
#   the summation tree is the stated one.
#
# Each bound holds for one element of a result with the stated confidence. The derivations are in docs/bounds.md.

RESCALED_TILE: Final = 64


@dataclass(frozen=True)
class RoundedSums:
    """Sums of `terms` terms each, as arrays of one library.

    `value()` is the size of the exact sum; `magnitude` bounds Σ|t| and `norm()` bounds ‖t‖₂ over the terms of an honest
    evaluation.
    `unit` is the unit roundoff of the running sum. `products` means that each term is itself a rounded product, `plain`
    that the operator computes nothing but the sum. `rescaling` is the number of roundings of a rescaled running sum for
    each further tile of `RESCALED_TILE` terms. `short` is the number of roundings per term to a 16-bit dtype, in
    kernels that keep partial sums in it; every model bounds these in the worst case. `reference` is the unit roundoff
    of the sums that the verifier computes itself. Without `signed`, `value()` only bounds the size of the exact sum.
    """

    terms: Any
    unit: float
    value: Callable[[], Any]
    magnitude: Any
    norm: Callable[[], Any]
    products: bool = False
    plain: bool = False
    rescaling: int = 0
    short: int = 0
    reference: float = REFERENCE.unit
    signed: bool = True

    @property
    def roundings(self) -> Any:
        """The largest number of roundings of one term."""
        if isinstance(self.terms, int):
            return max(self.terms - 1.0, 0.0) + self.products + self.rescalings
        return np.maximum(np.asarray(self.terms, np.float64) - 1, 0) + self.products + self.rescalings

    @property
    def margin(self) -> Any:
        """The relative error of a computed sum of squares, and of the square of a sum."""
        if self.reference == REFERENCE.unit:
            return 2.0**-50
        return 4 * (np.asarray(self.terms, np.float64) + 4) * self.reference

    @property
    def rescalings(self) -> Any:
        """The number of roundings of whole running sums, between tiles."""
        if not self.rescaling:
            return 0
        tiles = np.ceil(np.asarray(self.terms, np.float64) / RESCALED_TILE)
        return self.rescaling * np.maximum(tiles - 1, 0)


class Model(Protocol):
    """A model of rounding errors."""

    @property
    def name(self) -> str:
        """A short name, for tables."""

    @property
    def failure(self) -> float:
        """An upper bound on the probability that one element of an honest evaluation exceeds its bound."""

    def spread(self, sums: RoundedSums, library: ArrayLibrary) -> Any:
        """A bound on |computed − exact| as an array of `library`."""


@dataclass(frozen=True)
class Deterministic:
    """γ_k = ku / (1 − ku)."""

    name: str = "deterministic"
    failure: float = 0.0

    def spread(self, sums: RoundedSums, library: ArrayLibrary) -> Any:
        """γ_k Σ|t|; infinite if ku ≥ 1."""
        return lifted(library, worst_factor(sums.roundings, sums.unit, sums.reference)) * sums.magnitude


DETERMINISTIC: Final = Deterministic()


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
            return sums.norm() * lifted(library, (1 + sums.margin) ** 0.5)
        k, squares = np.maximum(np.asarray(sums.terms, np.float64), 1.0), sums.norm() ** 2
        square = squares - sums.value() ** 2 * lifted(library, 1 / k)
        return (0.5 * (square + abs(square)) + sums.margin * squares) ** 0.5

    def _second_order(self, sums: RoundedSums) -> Any:
        """λ√(λ² + 2 ln k) u k Σ|t| for partial sums that are themselves rounded, and λ√r Σ|t| for r rescalings."""
        k = np.maximum(sums.roundings, 1.0)
        nested = np.sqrt(self.confidence**2 + 2 * np.log(k)) * sums.unit * k
        return self.confidence * (nested + np.sqrt(sums.rescaling * sums.rescalings))


def worst_factor(roundings: Any, unit: float, reference: float = REFERENCE.unit) -> Any:
    """γ_k of an honest evaluation plus γ_k of the reference's own sums; infinite if ku ≥ 1."""
    return _gamma(roundings, unit) + _gamma(roundings, reference)


def lifted(library: ArrayLibrary, numbers: Any) -> Any:
    """NumPy numbers, converted for arithmetic with arrays of `library`."""
    return float(numbers) if np.ndim(numbers) == 0 else library.asarray(numbers, "F64")


def _gamma(roundings: Any, unit: float) -> Any:
    if isinstance(roundings, int | float):
        return roundings * unit / (1 - roundings * unit) if roundings * unit < 1 else math.inf
    relative = np.asarray(roundings, np.float64) * unit
    return np.where(relative < 1, relative / np.maximum(1 - relative, 2.0**-1000), np.inf)
