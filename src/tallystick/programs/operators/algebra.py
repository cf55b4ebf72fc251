"""The primitives in which every operator is defined, and those that work one element at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partialmethod
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

# An operator is defined once, as a function over an algebra. The same definition, read in different algebras, gives
#
# * `Types`: the dtypes and shapes of its results, and its floating-point operations;
# * `Batches`: which axis of a result is the batch axis, or that examples mix;
# * `Values`: its results, on NumPy, PyTorch or JAX arrays, in float64 or in the stated precision;
# * `Balls`: its results and a bound on the rounding error of any honest evaluation.
#
# Every value has a `dtype` (a safetensors name) and a `shape`. Unless stated otherwise, the tensor operands of a
# primitive have the same dtype, elementwise primitives broadcast as in NumPy, and a Python number next to a tensor is a
# constant of the tensor's dtype. Axes are counted from 0 and never negative. An operand that does not fit raises
# `MalformedError`, because definitions are read on untrusted graphs.

Number: TypeAlias = int | float
Comparison: TypeAlias = Literal["eq", "ne", "lt", "le", "gt", "ge"]
Axes: TypeAlias = tuple[int, ...]


class Typed(Protocol):
    """A value that has a dtype and a shape."""

    @property
    def dtype(self) -> str:
        """A safetensors name, such as `F32`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sides."""


V = TypeVar("V", bound=Typed)
X = TypeVar("X")


class Integers(Protocol[X]):
    """The primitives of `Algebra` that functions of integers alone use."""

    def add(self, x: X, y: X | int, /) -> X:
        """I64."""

    def sub(self, x: X | int, y: X | int, /) -> X:
        """I64."""

    def mul(self, x: X, y: X | int, /) -> X:
        """I64."""

    def shift_right(self, x: X, y: X | int, /) -> X:
        """Arithmetic."""

    def compare(self, x: X, y: X | int, how: Comparison, /) -> X:
        """BOOL."""

    def where(self, condition: X, x: X | int, y: X | int, /) -> X:
        """I64."""


class Algebra(Protocol[V]):
    """The primitives that a definition may call."""

    # ---- values from nothing

    def full(self, shape: Sequence[int], number: Number, dtype: str) -> V:
        """A tensor whose elements are all `number`, rounded to `dtype`."""

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> V:
        """Each element is its own index along `axis`."""

    # ---- one element at a time

    def cast(self, x: V, dtype: str) -> V:
        """Convert: floats round to nearest even, floats to integers truncate, numbers to BOOL become `x != 0`."""

    def neg(self, x: V) -> V:
        """Exact."""

    def abs(self, x: V) -> V:
        """Exact."""

    def sign(self, x: V) -> V:
        """-1, 0 or 1."""

    def floor(self, x: V) -> V:
        """Exact."""

    def ceil(self, x: V) -> V:
        """Exact."""

    def trunc(self, x: V) -> V:
        """Exact."""

    def round(self, x: V) -> V:
        """To the nearest integer, ties to even."""

    def sqrt(self, x: V) -> V:
        """Rounds once (IEEE 754-2019 §5.4.1)."""

    def rsqrt(self, x: V) -> V:
        """1 / √x; library function."""

    def exp(self, x: V) -> V:
        """Library function."""

    def expm1(self, x: V) -> V:
        """eˣ − 1; library function."""

    def log(self, x: V) -> V:
        """Natural logarithm; library function."""

    def log1p(self, x: V) -> V:
        """log(1 + x); library function."""

    def sin(self, x: V) -> V:
        """Library function."""

    def cos(self, x: V) -> V:
        """Library function."""

    def tanh(self, x: V) -> V:
        """Library function."""

    def erf(self, x: V) -> V:
        """Library function."""

    def sigmoid(self, x: V) -> V:
        """1 / (1 + e⁻ˣ); library function."""

    def is_finite(self, x: V) -> V:
        """BOOL."""

    def add(self, x: V, y: V | Number) -> V:
        """Rounds once; integers wrap."""

    def sub(self, x: V | Number, y: V | Number) -> V:
        """Rounds once; integers wrap."""

    def mul(self, x: V, y: V | Number) -> V:
        """Rounds once; integers wrap."""

    def div(self, x: V | Number, y: V | Number) -> V:
        """Rounds once; floats only."""

    def pow(self, x: V | Number, y: V | Number) -> V:
        """Library function; for integers |y| ≤ 3 and for ±0.5, products and roots with at most 4 roundings."""

    def maximum(self, x: V, y: V | Number) -> V:
        """Exact; NaN where either is."""

    def minimum(self, x: V, y: V | Number) -> V:
        """Exact; NaN where either is."""

    def floor_divide(self, x: V, y: V | Number) -> V:
        """⌊x / y⌋; integers only."""

    def remainder(self, x: V, y: V | Number) -> V:
        """X − ⌊x / y⌋·y, with the sign of y; integers only."""

    def compare(self, x: V, y: V | Number, how: Comparison) -> V:
        """BOOL; false beside NaN, save `ne`."""

    def logical_and(self, x: V, y: V) -> V:
        """Bitwise for integers, logical for BOOL."""

    def logical_or(self, x: V, y: V) -> V:
        """Bitwise for integers, logical for BOOL."""

    def logical_xor(self, x: V, y: V) -> V:
        """Bitwise for integers, logical for BOOL."""

    def logical_not(self, x: V) -> V:
        """Bitwise for integers, logical for BOOL."""

    def shift_left(self, x: V, y: V | Number) -> V:
        """Integers only; bits shifted out are lost."""

    def shift_right(self, x: V, y: V | Number) -> V:
        """Integers only; logical for unsigned, arithmetic for signed."""

    def where(self, condition: V, x: V | Number, y: V | Number) -> V:
        """`x` where the BOOL `condition` is true, else `y`; at least one of the two is a tensor."""

    # ---- random words

    def mersenne(self, state: V, move: V, count: int) -> tuple[V, V]:
        """I64 [count]: words of MT19937, below 2³²; and I64 [625]: the state behind them (`programs.random_words`).

        `state` is I64 [625]; `move` is I64 [2]: a seed, or -1 to go on from `state`, and how many words to skip.
        """

    # ---- many elements to one

    def sum(self, x: V, axes: Axes, keep: bool = False, short: int = 0) -> V:
        """Accumulates in any order; the sum over no elements is 0. For `short` see `dot`."""

    def prod(self, x: V, axes: Axes, keep: bool = False) -> V:
        """Accumulates in any order."""

    def max(self, x: V, axes: Axes, keep: bool = False) -> V:
        """Exact; NaN where any is. BOOL: any."""

    def min(self, x: V, axes: Axes, keep: bool = False) -> V:
        """Exact; NaN where any is. BOOL: all."""

    def argmax(self, x: V, axis: int, keep: bool = False) -> V:
        """I64: the first index of the maximum."""

    def cumsum(self, x: V, axis: int) -> V:
        """Accumulates in any order."""

    def sort(self, x: V, axis: int, descending: bool) -> tuple[V, V]:
        """Sorted values and their I64 indices; stable."""

    def dot(self, x: V, y: V, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ()), short: int = 0) -> V:
        """Sum of products over the `contract` axes; result axes: batch, free of `x`, free of `y`. Any order.

        `short`: for 16-bit float operands, the number of roundings to their dtype per term in kernels that keep partial
        sums in this dtype.
        """

    # ---- moving data

    def reshape(self, x: V, shape: Sequence[int]) -> V:
        """Row-major; the number of elements does not change."""

    def broadcast(self, x: V, shape: Sequence[int]) -> V:
        """As NumPy's `broadcast_to`."""

    def transpose(self, x: V, axes: Sequence[int]) -> V:
        """Result axis `i` is axis `axes[i]` of `x`."""

    def slice(self, x: V, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> V:
        """One entry per axis; 0 ≤ start ≤ stop ≤ side, step ≥ 1."""

    def pad(self, x: V, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> V:
        """`number` before, after and between elements (StableHLO `pad`); negative `low` and `high` crop."""

    def concat(self, xs: Sequence[V], axis: int) -> V:
        """At least one tensor; shapes differ at most along `axis`."""

    def flip(self, x: V, axes: Axes) -> V:
        """Reversed along each of `axes`."""

    def take(self, x: V, indices: Sequence[V], axis: int) -> V:
        """`x[..., i0, i1, …, ...]` with integer tensors that broadcast together, for adjacent axes from `axis` on.

        The broadcast shape replaces the indexed axes. Negative indices count from the end; an index out of range
        raises `MalformedError` if values are known.
        """

    def take_along(self, x: V, indices: V, axis: int) -> V:
        """NumPy's `take_along_axis`; the shapes are equal except along `axis`."""

    def scatter(self, x: V, indices: Sequence[V], axis: int, updates: V, add: bool) -> V:
        """`x` with `updates` written, or added, where `take(x, indices, axis)` reads; added in any order."""

    def windows(self, x: V, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> V:
        """Sliding windows: `axes` become positions, and one axis per window side is appended at the end."""

    # ---- precision

    def wide(self, x: V) -> V:
        """`x` in the dtype in which kernels accumulate: F32 for F16 and BF16, otherwise unchanged. Exact."""


class ByElement(ABC, Generic[V]):
    """The elementwise part of an `Algebra[V]`: every primitive here calls `_by_element` with its name."""

    @abstractmethod
    def _by_element(self, name: str, x: V | Number, y: V | Number | None = None) -> V:
        """The primitive `name` of one operand, or of two."""

    def _named(self, name: str, *operands: V | Number) -> V:
        return self._by_element(name, *operands)

    neg = partialmethod(_named, "neg")
    abs = partialmethod(_named, "abs")
    sign = partialmethod(_named, "sign")
    floor = partialmethod(_named, "floor")
    ceil = partialmethod(_named, "ceil")
    trunc = partialmethod(_named, "trunc")
    round = partialmethod(_named, "round")
    sqrt = partialmethod(_named, "sqrt")
    rsqrt = partialmethod(_named, "rsqrt")
    exp = partialmethod(_named, "exp")
    expm1 = partialmethod(_named, "expm1")
    log = partialmethod(_named, "log")
    log1p = partialmethod(_named, "log1p")
    sin = partialmethod(_named, "sin")
    cos = partialmethod(_named, "cos")
    tanh = partialmethod(_named, "tanh")
    erf = partialmethod(_named, "erf")
    sigmoid = partialmethod(_named, "sigmoid")
    is_finite = partialmethod(_named, "is_finite")
    logical_not = partialmethod(_named, "logical_not")
    add = partialmethod(_named, "add")
    sub = partialmethod(_named, "sub")
    mul = partialmethod(_named, "mul")
    div = partialmethod(_named, "div")
    pow = partialmethod(_named, "pow")
    maximum = partialmethod(_named, "maximum")
    minimum = partialmethod(_named, "minimum")
    floor_divide = partialmethod(_named, "floor_divide")
    remainder = partialmethod(_named, "remainder")
    logical_and = partialmethod(_named, "logical_and")
    logical_or = partialmethod(_named, "logical_or")
    logical_xor = partialmethod(_named, "logical_xor")
    shift_left = partialmethod(_named, "shift_left")
    shift_right = partialmethod(_named, "shift_right")
