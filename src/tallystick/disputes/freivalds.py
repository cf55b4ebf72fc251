"""A product of matrices, checked without being computed: C·r beside A·(B·r) for vectors r of random signs.

Freivalds, *Fast probabilistic algorithms* (1979): over exact numbers a wrong product passes one vector with probability
at most 1/2. Rounded products leave a residual, so here row i passes where |Cᵢ·r − Aᵢ·(B·r)| ≤ Tᵢ, and Tᵢ covers the sum of
the bounds of the row's elements: no honest product fails, whatever r is. An element that is farther than Tᵢ from the exact
one passes one vector with probability at most 1/2: turning its sign moves the residual by more than 2 Tᵢ.

Of products with a summand, C = βS + α·A·B. All sums are formed in float64, whose own rounding is in Tᵢ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.commitments import digest, digest_bytes, encode, words
from tallystick.graphs.derive import operand_of
from tallystick.graphs.graph import Node, Ref
from tallystick.operators.arrays import exact_float64
from tallystick.operators.balls.ball import INFLATION
from tallystick.operators.precision import FORMATS, REFERENCE, SHORT, Precision
from tallystick.operators.rounding import worst_factor
from tallystick.tensors import Tensor

Floats: TypeAlias = npt.NDArray[np.float64]
PRODUCTS: Final = frozenset(f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear"))
"""Operators that are checked in this way."""
EXTRA_ROUNDINGS: Final = 8
"""Scaling by alpha and beta, adding, and storing: more roundings than any kernel spends on them."""


@dataclass(frozen=True)
class Product:
    """C = αAB + βS as stacks of matrices in float64: A [b,n,k], B [b,k,m], S [b,n,m] or `None`, C [b,n,m]."""

    left: Floats
    right: Floats
    summand: Floats | None
    alpha: float
    beta: float
    claimed: Floats
    inner: str
    outer: str


@dataclass(frozen=True)
class Residuals:
    """The largest |C·r − A·(B·r)| ÷ T over all rows and vectors, where it is, and how many rows have no finite T."""

    worst: float
    row: tuple[int, int]
    rows: int
    unbounded: int
    vectors: int
    flops: int

    @property
    def holds(self) -> bool:
        """Whether every row that has a tolerance is within it."""
        return self.worst <= 1.0

    @property
    def escape(self) -> float:
        """The probability at most with which an element beyond its row's tolerance passes: 2^−vectors."""
        return float(2.0**-self.vectors)


def check_product(product: Product, signs: Floats, precision: Precision) -> Residuals:
    """Compare the claimed product with the exact one along the columns of `signs` [m,t], each ±1."""
    with np.errstate(all="ignore"):
        inner = product.right @ signs
        expected = product.alpha * (product.left @ inner)
        if product.summand is not None and product.beta:
            expected = expected + product.beta * (product.summand @ signs)
        residual = np.abs(product.claimed @ signs - expected).max(axis=-1, initial=0.0)
        allowed = row_tolerances(product, precision)
        shares = np.where(np.isfinite(allowed), residual / allowed, 0.0)
    shares = np.where(np.isnan(shares), np.where(residual == 0, 0.0, np.inf), shares)
    place = int(np.argmax(shares)) if shares.size else 0
    row = divmod(place, max(shares.shape[1], 1))
    worst = float(shares.reshape(-1)[place]) if shares.size else 0.0
    unbounded = int(np.count_nonzero(~np.isfinite(allowed)))
    return Residuals(worst, row, shares.size, unbounded, signs.shape[1], flops_of(product, signs.shape[1]))


def row_tolerances(product: Product, precision: Precision) -> Floats:
    """T [b,n]: no less than the sum of each row's elementwise bounds; infinite where overflow is possible.

    The terms of the deterministic bound of a product (docs/bounds.md) are linear in |A|·|B|, so that their sum over a
    row needs |B|·1 and no product of matrices.
    """
    a, b = np.abs(product.left), np.abs(product.right)
    r, s = _read(a, product.inner, precision), _read(b, product.inner, precision)
    width, terms = product.claimed.shape[-1], product.left.shape[-1]
    magnitude = abs(product.alpha) * (a + r @ np.eye(1) if False else a + r) @ (b + s).sum(axis=-1, keepdims=True)
    spread = abs(product.alpha) * (a @ s.sum(axis=-1, keepdims=True) + r @ (b + s).sum(axis=-1, keepdims=True))
    total = magnitude[..., 0]
    if product.summand is not None and product.beta:
        total = total + abs(product.beta) * np.abs(product.summand).sum(axis=-1)
    unit, stored = _units(product, precision)
    factor = float(worst_factor(terms + EXTRA_ROUNDINGS, unit)) + EXTRA_ROUNDINGS * stored
    own = float(worst_factor(2 * terms + 2 * width + EXTRA_ROUNDINGS, 0.0))
    lost = width * (terms + EXTRA_ROUNDINGS) * 4.0 * _underflow(product, precision)
    tolerance = (factor + own) * total + spread[..., 0] * (1 + factor) + lost
    return np.where(_is_bounded(product, precision), tolerance * INFLATION, np.inf)
