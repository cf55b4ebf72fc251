"""The formats in which an honest evaluation holds its numbers; they enter every bound as three separate terms.

*Storage* is the nominal dtype of a tensor. *Products* is the format to which operands of a contraction are rounded
before they are multiplied (TF32). *Accumulation* is the format of running sums. A value of dtype `d` has the unit
roundoff of `d`; definitions widen 16-bit floats to F32, compute, and round once at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.errors import MalformedError


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: significand bits including the hidden one, and the range of normal exponents."""

    bits: int
    exponent_min: int
    exponent_max: int

    @property
    def unit(self) -> float:
        """The unit roundoff u: rounding to nearest changes a normal number by at most the factor 1 ± u."""
        return float(2.0**-self.bits)

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number; smaller ones are subnormal, and some processors flush them to zero."""
        return float(2.0**self.exponent_min)

    @property
    def half_step(self) -> float:
        """The largest change by rounding among the subnormal numbers."""
        return float(max(2.0 ** (self.exponent_min - self.bits), 2.0**-1074))

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return float((2.0 - 2.0 ** (1 - self.bits)) * 2.0**self.exponent_max)


FORMATS: Final[Mapping[str, Format]] = {
    "BF16": Format(8, -126, 127),
    "F16": Format(11, -14, 15),
    "F32": Format(24, -126, 127),
    "F64": Format(53, -1022, 1023),
    "TF32": Format(11, -126, 127),
}
"""IEEE 754-2019 §3.6, bfloat16, and the multiplication format of NVIDIA tensor cores."""

SHORT: Final = frozenset({"BF16", "F16"})
REFERENCE: Final = FORMATS["F64"]
"""The format of the verifier's own computation."""


@dataclass(frozen=True)
class Precision:
    """How a stated device differs from plain arithmetic in the nominal dtypes; by default not at all.

    `products` and `accumulation` name a format, or are `None` for that of the operands. With `flush`, subnormal
    numbers (F16 excepted) may be read and written as zero, as in XLA and many GPU kernels. If `widens` is false, a
    kernel for F16 or BF16 may round every intermediate result to that dtype, not only the last one. Even then running
    sums are F32, except for the partial sums that a definition marks as `short` (`Algebra.dot`).
    """

    products: str | None = None
    accumulation: str | None = None
    flush: bool = True
    widens: bool = True

    def __post_init__(self) -> None:
        for name in (self.products, self.accumulation):
            if name is not None and name not in FORMATS:
                raise MalformedError(f"{name[:40]!r} is no floating-point format")

    def accumulator(self, dtype: str) -> Format:
        """The format of running sums over terms of `dtype`; never more precise than the nominal one."""
        nominal = FORMATS[dtype]
        stated = nominal if self.accumulation is None else FORMATS[self.accumulation]
        return stated if stated.bits < nominal.bits else nominal

    def multiplier(self, dtype: str) -> Format | None:
        """The format to which operands of a contraction are rounded; `None` unless it is narrower than `dtype`."""
        stated = FORMATS[self.products or dtype]
        return stated if stated.bits < FORMATS[dtype].bits else None

    def underflow(self, dtype: str) -> float:
        """The largest change by one rounding to `dtype` of a result that is too small for its unit roundoff."""
        form = FORMATS[dtype]
        return form.smallest_normal if self._flushes(dtype) else form.half_step

    def read_as_zero(self, dtype: str) -> float:
        """Operands of `dtype` below this magnitude may be read as zero; 0 if none may."""
        return FORMATS[dtype].smallest_normal if self._flushes(dtype) else 0.0

    def _flushes(self, dtype: str) -> bool:
        return self.flush and dtype != "F16"


PLAIN: Final = Precision()
STEPWISE: Final = Precision(widens=False)
"""PyTorch's kernels for F16 and BF16 on CPUs: some compute in F32, some round after every step."""
UNSTATED: Final = STEPWISE
"""The assumption about a device if the verifier states nothing: it covers every honest kernel."""
TENSOR_FLOAT: Final = Precision(products="TF32")
BFLOAT_PRODUCTS: Final = Precision(products="BF16")
HALF_SUMS: Final = Precision(accumulation="F16")
BFLOAT_SUMS: Final = Precision(accumulation="BF16")
