"""The order in which the terms of a sum are added: the numbers of the summation tree that the variance bound needs.

A tree over k leaves has an inner node for every addition. `Summation` assumes chains: the terms of each block of at
most `block` terms are added one after the other, and then the block sums. A tree with shorter paths has a smaller
error. Derivations are in docs/bounds.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
