"""Checks a product of matrices without computing it: C·r against A·(B·r) for vectors r of random signs.

Freivalds, *Fast probabilistic algorithms* (1979): over exact numbers a wrong product passes one vector with
probability at most 1/2. Rounded products leave a residual, so here row i passes where |Cᵢ·r − Aᵢ·(B·r)| ≤ Tᵢ, and Tᵢ
covers the sum of the bounds of the row's elements. So no honest product fails, whatever r is. An element that is
farther than Tᵢ from the exact one passes one vector with probability at most 1/2, because changing its sign in r moves
the residual by more than 2 Tᵢ.

With a summand, C = βS + α·A·B. All sums are formed in float64; their rounding is included in Tᵢ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes
from tallystick.core.tensors import Tensor
from tallystick.programs.graph import Node, Ref, operands_of
from tallystick.programs.operators.arrays import exact_float64
from tallystick.programs.operators.balls.ball import INFLATION
from tallystick.programs.operators.precision import FORMATS, SHORT, Precision
from tallystick.programs.operators.rounding import worst_factor
from tallystick.programs.random_words import words

Floats: TypeAlias = npt.NDArray[np.float64]
EXTRA_ROUNDINGS: Final = 8
"""Roundings for scaling by alpha and beta, adding, and storing; no kernel needs more."""
ROOM: Final = 0.9
"""Rows whose elements may come closer to the largest number have no tolerance, because an overflow is possible."""


@dataclass(frozen=True)
class Product:
    """C = αAB + βS as stacks of matrices in float64: A [b,n,k], B [b,k,m], C [b,n,m], S [b,n,m] or `None`.

    `dtype` is that of the tensors.
    """

    left: Floats
    right: Floats
    claimed: Floats
    dtype: str
    summand: Floats | None = None
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def inner(self) -> str:
        """The dtype in which products are formed and added."""
        return "F32" if self.dtype in SHORT else self.dtype

    @property
    def is_plain(self) -> bool:
        """Whether it is a product alone, without scaling or summand."""
        return self.alpha == 1.0 and (self.summand is None or self.beta == 0.0)


@dataclass(frozen=True)
class Residuals:
    """|C·r − A·(B·r)| ÷ T of every row, [b,n], the largest over all vectors; 0 for the `unbounded` rows without a T."""

    shares: Floats
    unbounded: int
    vectors: int

    @property
    def worst(self) -> float:
        """The largest share of any row."""
        return float(self.shares.max(initial=0.0))

    @property
    def worst_rows(self) -> list[tuple[int, int]]:
        """Stack index and row index of all rows, the largest shares first."""
        order = np.argsort(-self.shares.reshape(-1), kind="stable").tolist()
        return [divmod(place, self.shares.shape[-1]) for place in order]

    @property
    def holds(self) -> bool:
        """Whether every row that has a tolerance is within it; a worse element passes with 2^−vectors at most."""
        return self.worst <= 1.0


def check_product(product: Product, signs: Floats, precision: Precision) -> Residuals:
    """The residuals of the claimed product along the columns of `signs` [m,t], each ±1."""
    with np.errstate(all="ignore"):
        expected = product.alpha * (product.left @ (product.right @ signs))
        if product.summand is not None and product.beta:
            expected = expected + product.beta * (product.summand @ signs)
        residual = np.abs(product.claimed @ signs - expected).max(axis=-1, initial=0.0)
        allowed = row_tolerances(product, precision)
        shares = np.where(residual == 0, 0.0, residual / allowed)
    shares = np.where(np.isinf(allowed), 0.0, np.where(np.isnan(shares), np.inf, shares))
    return Residuals(shares, int(np.count_nonzero(np.isinf(allowed))), signs.shape[1])


def places_of_largest_errors(product: Product, residuals: Residuals, rows: int, count: int) -> npt.NDArray[np.int64]:
    """Flat places of the `count` elements in each of `rows` rows that are farthest from the exact ones.

    The rows are those with the largest residuals; distances are relative to |A|·|B|. This finds an error that is within
    the tolerance of its row but not within its own bound.
    """
    places = []
    for stack, row in residuals.worst_rows[:rows]:
        left, right = product.left[stack, row], product.right[stack]
        with np.errstate(all="ignore"):
            exact, size = product.alpha * (left @ right), abs(product.alpha) * (np.abs(left) @ np.abs(right))
            if product.summand is not None and product.beta:
                exact = exact + product.beta * product.summand[stack, row]
                size = size + abs(product.beta * product.summand[stack, row])
            off = np.abs(product.claimed[stack, row] - exact) / size
        columns = np.argsort(-np.nan_to_num(off, nan=np.inf, posinf=np.inf), kind="stable")[:count]
        places.append((stack * product.claimed.shape[1] + row) * product.claimed.shape[2] + columns)
    return np.concatenate(places).astype(np.int64) if places else np.empty(0, np.int64)


def row_tolerances(product: Product, precision: Precision) -> Floats:
    """T [b,n]: no less than the sum of each row's elementwise bounds; infinite where an overflow is possible.

    Every term of the deterministic bound of a product (docs/bounds.md) is linear in |A|·|B|, so that the sum over a row
    needs |B|·1 only.
    """
    a, b, scale = np.abs(product.left), np.abs(product.right), abs(product.alpha)
    read_a, read_b = _as_read(a, product, precision), _as_read(b, product, precision)
    plain, total = (scale * (x @ y.sum(axis=-1)[..., None])[..., 0] for x, y in ((a, b), (read_a, read_b)))
    spread = np.maximum(total - plain, 0.0)
    # With β = 0 the summand is not read.
    added = None if product.summand is None or not product.beta else abs(product.beta) * np.abs(product.summand)
    beside = 0.0 if added is None else added.sum(axis=-1)
    relative, stored, lost = _roundings(product, precision)
    stated = np.abs(product.claimed).sum(axis=-1) + 2 * beside
    tolerance = relative * (total + beside + spread) + spread + stored * stated + b.shape[-1] * lost
    bounded = _is_bounded(product, read_a, read_b, added)
    return np.where(bounded, tolerance * (1 + 4 * stored) * INFLATION**EXTRA_ROUNDINGS, np.inf)


def signs_of(nonce: bytes, subject: str, side: int, vectors: int) -> Floats:
    """±1 in float64 [side, vectors], from the bits of the words of a nonce; see `sampling.chosen_places`."""
    key = digest_bytes(digest("draw", encode({"nonce": nonce.hex(), "signs": subject})))
    bits = np.unpackbits(words(key, -(-side * vectors // 64)).astype("<u8").view(np.uint8))
    return np.asarray(bits[: side * vectors].reshape(side, vectors) * 2.0 - 1.0, np.float64)


def product_of(node: Node, values: Mapping[Ref, Tensor]) -> Product | None:
    """The matrix product that a node claims; `None` for other operators, vectors, integers and empty products."""
    read = _READINGS.get(node.operator)
    claimed = values[next(filter(None, node.outputs))]
    if read is None or claimed.dtype not in FORMATS or not claimed.array().size:
        return None
    operands = operands_of(node, values)
    given = {name: _numbers(value) for name, value in operands.items() if value is not None}
    parts = read(given, _numbers(claimed))
    if parts is None:
        return None
    left, right, result, summand = parts
    factors = {name: _constant(node.attributes.get(name, 1), claimed.dtype) for name in ("alpha", "beta")}
    return Product(left, right, result, claimed.dtype, summand, **factors)


Parts: TypeAlias = "tuple[Floats, Floats, Floats, Floats | None]"
"""Left, right, claimed and summand, as stacks of matrices."""
Reading: TypeAlias = "Callable[[Mapping[str, Floats], Floats], Parts | None]"


def _linear(given: Mapping[str, Floats], claimed: Floats) -> Parts | None:
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if weight.ndim != 2:
        return None
    result = claimed.reshape(1, -1, weight.shape[0])
    summand = None if bias is None else np.broadcast_to(bias, result.shape)
    return x.reshape(1, -1, weight.shape[1]), weight.T[None], result, summand


def _matmul(given: Mapping[str, Floats], claimed: Floats) -> Parts | None:
    x, y = given["self"], given["other"]
    if x.ndim < 2 or y.ndim < 2:
        return None
    batch = claimed.shape[:-2]
    left, right = np.broadcast_to(x, (*batch, *x.shape[-2:])), np.broadcast_to(y, (*batch, *y.shape[-2:]))
    left, right, claimed = (stack.reshape(-1, *stack.shape[-2:]) for stack in (left, right, claimed))
    return left, right, claimed, None


_READINGS: Final[Mapping[str, Reading]] = {
    "aten.mm.default": lambda given, claimed: (given["self"][None], given["mat2"][None], claimed[None], None),
    "aten.bmm.default": lambda given, claimed: (given["self"], given["mat2"], claimed, None),
    "aten.addmm.default": lambda given, claimed: (
        *(given["mat1"][None], given["mat2"][None], claimed[None]),
        np.broadcast_to(given["self"], claimed.shape)[None],
    ),
    "aten.baddbmm.default": lambda given, claimed: (
        *(given["batch1"], given["batch2"], claimed),
        np.broadcast_to(given["self"], claimed.shape),
    ),
    "aten.linear.default": _linear,
    "aten.matmul.default": _matmul,
}


def _numbers(tensor: Tensor) -> Floats:
    return np.asarray(exact_float64(tensor.array(), tensor.dtype), np.float64)


def _constant(number: Any, dtype: str) -> float:
    """A constant, rounded as in the reference to the dtype in which it multiplies."""
    return float(number) if dtype == "F64" else float(np.float32(number))


def _as_read(size: Floats, product: Product, precision: Precision) -> Floats:
    """The largest size as which a device may read a factor: rounded for coarser products, subnormal numbers grown."""
    tiny, form = precision.read_as_zero(product.inner), precision.multiplier(product.inner)
    if size.min(initial=np.inf, where=size > 0) < tiny:
        size = np.where(size < tiny, 4.0 * size, size)
    return size if form is None else size * (1 + 2 * form.unit)


def _roundings(product: Product, precision: Precision) -> tuple[float, float, float]:
    """The rounding of one element relative to its terms, the rounding relative to itself, and the largest underflow."""
    terms, width = product.left.shape[-1] + EXTRA_ROUNDINGS, product.claimed.shape[-1]
    inner, outer = product.inner, product.dtype
    own = float(worst_factor(2 * (terms + width), 0.0))  # those of this check itself
    relative = float(worst_factor(terms, precision.accumulator(inner).unit)) + own
    unit = FORMATS[outer].unit if outer in SHORT else 0.0
    stored = unit * (1 + 4 * unit) if precision.widens else EXTRA_ROUNDINGS * unit
    relative += 0.0 if precision.widens or product.is_plain else EXTRA_ROUNDINGS * unit
    wide, least = (max(precision.underflow(name), FORMATS[name].half_step) for name in (inner, outer))
    deep = wide if precision.widens else max(wide, least)
    scale = max(1.0, abs(product.alpha), abs(product.beta))
    return relative, stored, EXTRA_ROUNDINGS * max(wide, least) + 4.0 * terms * deep * scale


def _is_bounded(product: Product, a: Floats, b: Floats, added: Floats | None) -> npt.NDArray[np.bool_]:
    """Rows of finite numbers in which nothing overflows, whatever the order of the sum."""
    largest = (a @ b.max(axis=-1, initial=0.0)[..., None])[..., 0] * max(1.0, abs(product.alpha))
    if added is not None:
        largest = largest + added.max(axis=-1, initial=0.0)
    limit = min(FORMATS[product.inner].largest, FORMATS[product.dtype].largest)
    return np.asarray(largest < ROOM * limit)
