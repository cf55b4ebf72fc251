"""How the terms of a sum are put together: numbers of the summation tree that the variance bound needs.

Let a tree over k leaves have an inner node for every addition. `Summation` assumes chains: blocks of at most `block`
terms are added one after the other, then the block sums one after the other; a tree with shorter paths only gains.
Derivations are in docs/bounds.md.
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

    `depth` is the mean number of roundings a term goes through, `peak` the largest eigenvalue of the matrix "additions
    that terms i and j share" divided by k, `coherent` the norm of the subtree sizes divided by k.
    """

    depth: Count
    peak: Count
    coherent: Count


@dataclass(frozen=True)
class Summation:
    """Chains of at most `block` terms, and one chain over the block sums; `None` is one chain over all terms."""

    block: int | None = None

    def tree(self, terms: Any, products: bool) -> Tree:
        """The numbers for `terms` terms; with `products`, each term is itself rounded once."""
        k = np.maximum(np.asarray(terms, np.float64), 1.0)
        inner = k if self.block is None else np.minimum(k, float(self.block))
        outer = np.ceil(k / inner)
        once = 1.0 if products else 0.0
        depth = (inner + 1) / 2 + np.where(outer > 1, (outer + 1) / 2, 0.0) + once
        peak = _chain_peak(inner) * inner / k + np.where(outer > 1, _chain_peak(outer) * inner * outer / k, 0.0) + once
        sizes = _chain_squares(inner) * outer + np.where(outer > 1, inner**2 * _chain_squares(outer), 0.0) + once * k
        return Tree(depth, peak, np.sqrt(sizes) / k)


ANY_ORDER: Final = Summation()
BLOCKED: Final = Summation(256)


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
