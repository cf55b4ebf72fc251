"""Formats of numbers, error bounds of elementary functions, and engines that are known to exceed bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tallystick.core.errors import MalformedError

# The formats in which an honest evaluation holds its numbers; they enter every bound as three separate terms.
#
# *Storage* is the nominal dtype of a tensor. *Products* is the format to which operands of a contraction are rounded
# before they are multiplied (TF32). *Accumulation* is the format of running sums. A value of dtype `d` has the unit
# roundoff of `d`; definitions widen 16-bit floats to F32, compute, and round once at the end.


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


# Error bounds of the elementary functions in honest libraries, in units in the last place.
#
# A figure U means |computed − exact| ≤ U ulp(exact) + A, in the dtype in which the function is computed; A is 0 except
# in some fused kernels. The figures of `ANY` hold for every engine. For a device that states its library, smaller
# figures can be used. docs/bounds.md gives the sources and measurements of the figures, and a test checks them.


@dataclass(frozen=True)
class MathLibrary:
    """Figures by function: in units in the last place, and absolute errors if there are any."""

    name: str
    ulps: Mapping[str, float]
    absolute: Mapping[str, float] = field(default_factory=dict)

    def within(self, operator: str, is_short: bool) -> MathLibrary:
        """The figures inside the kernels of one operator; fused and 16-bit kernels use cheaper functions.

        The error function in oneDNN's gelu and in kernels for 16-bit floats has the error of Abramowitz & Stegun
        7.1.26, 1.5e-7. The error of exponentials in fused attention is part of its definition.
        """
        return replace(self, absolute={"erf": 2.0**-21}) if is_short or "gelu" in operator else self


ANY: Final = MathLibrary(
    "any",
    {
        "exp": 2.0,  # SLEEF u10 1.0, CUDA expf 2, glibc 1, XLA and IREE polynomials 1
        "expm1": 6.0,  # SLEEF u10 1.0, CUDA 1, XLA 4.9
        "log": 2.0,  # SLEEF u10 1.0, CUDA 1, XLA 1.2
        "log1p": 4.0,  # SLEEF u10 1.0, CUDA 1, XLA 2.5
        "sin": 2.0,  # SLEEF u10 1.0, CUDA 2, glibc 1
        "cos": 2.0,  # SLEEF u10 1.0, CUDA 2, glibc 1
        "tanh": 5.0,  # SLEEF u10 1.0, CUDA 2, XLA rational function 4.1
        "erf": 6.0,  # SLEEF u10 1.0, CUDA 2, XLA rational function 5.3
        "sigmoid": 3.0,  # 1 / (1 + exp(−x)): a function of 2 ulp and two roundings, each weighted by at most 1
        "sqrt": 1.0,  # IEEE 754 says 0.5; MKL's vector function 0.56, CUDA without -prec-sqrt 1
        "rsqrt": 2.0,  # square root and division 1.5, CUDA 2
        "pow": 8.0,  # SLEEF u10 1.0, CUDA powf 4 (8 before version 12), XLA exp(y log x) with an extended logarithm
    },
)

VECTOR: Final = MathLibrary(
    "vector",
    {**ANY.ulps}
    | {"exp": 1.5, "expm1": 1.5, "log": 1.5, "log1p": 1.5, "sin": 1.5, "cos": 1.5, "tanh": 1.5, "erf": 1.5, "pow": 1.5},
)
"""The functions of SLEEF and MKL with 1.0 ulp, which PyTorch uses on CPUs."""

FUSED_EXPONENTIAL: Final = {"F16": 8192, "BF16": 8192, "F32": 16, "F64": 16}
"""The allowed relative error of an exponential inside fused attention, in addition to that of the library.

In units of 2⁻²⁴ (of 2⁻⁵³ in F64). In PyTorch, at most 7 units were measured for F32, and at most 6,540 on AVX-512 for
F16 and BF16, whose weights are rounded next.
"""


# Engines that are known to exceed bounds; judges of openings read this table before they reject a result.
#
# An opening names the engine that computed it. If that engine is known to exceed the bound of an operator, a result
# beyond the bound is not evidence against the prover: the judge says so, and the verdict is inconclusive. A prover that
# falsely names such an engine gains no more than this: results inside the bound are judged as usual, and results beyond
# it are never accepted. A dispute must end with a loser, so its referee does not read this table: docs/bounds.md.


@dataclass(frozen=True)
class Outside:
    """One line of the table: results with `dtypes` of these operators (of all if empty) by an engine.

    `factor` is the largest error ÷ radius measured with `version`. Other versions were not measured and are treated the
    same.
    """

    engine: str
    version: str
    operators: frozenset[str]
    dtypes: frozenset[str]
    factor: float
    why: str

    def __str__(self) -> str:
        return f"{self.engine} is known to leave it: {self.why} (by up to {self.factor:.3g} times, {self.version})"


_WAVES: Final = frozenset(
    {"stablehlo.sine", "stablehlo.cosine", "aten.sin.default", "aten.cos.default", "aten.tan.default"}
)
_PRODUCTS: Final = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
_IMAGES: Final = frozenset({"aten.convolution.default", "aten.conv2d.default", "aten.conv2d.padding"})

OUTSIDE: Final = (
    Outside("iree", "3.13", _WAVES, frozenset({"F32", "BF16", "F16"}), 1.1e7, "sine and cosine near 0 and far from it"),
    Outside("iree", "3.13", _PRODUCTS, frozenset({"BF16"}), 116, "products keep partial sums in BF16"),
    Outside("torch-nnpack", "2.13", _IMAGES, frozenset({"F32"}), 18.5, "NNPACK transforms tiles of images (Winograd)"),
    Outside("iree", "3.13", frozenset(), frozenset({"F16"}), 1023, "results below 2^-14 become 0, sums are F16"),
)
"""Measured by tests/programs/operators/test_engines.py."""


def outside(engine: str | None, operator: str, dtype: str) -> Outside | None:
    """The line of the table about a result with `dtype` of this operator, or `None`."""
    return next(
        (each for each in lines_of(engine) if dtype in each.dtypes and operator in (each.operators or {operator})), None
    )


def lines_of(engine: str | None) -> Iterator[Outside]:
    """All lines about an engine."""
    return (each for each in OUTSIDE if each.engine == engine)
