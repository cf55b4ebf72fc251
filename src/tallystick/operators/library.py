"""How far from exact the elementary functions of honest libraries are, in units in the last place.

A figure U says |computed − exact| ≤ U ulp(exact) + A, in the dtype in which the function is computed; A is 0 but within
some fused kernels. Figures of `ANY` hold for every engine; a device that states its library can be held to smaller
ones. Where the figures come from, and what was measured, is written in docs/bounds.md and held by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final


@dataclass(frozen=True)
class MathLibrary:
    """Figures by function: in units in the last place, and absolute where there are such."""

    name: str
    ulps: Mapping[str, float]
    absolute: Mapping[str, float] = field(default_factory=dict)

    def within(self, operator: str, is_short: bool) -> MathLibrary:
        """The figures inside the kernels of one operator: fused and 16-bit ones have cheaper functions.

        oneDNN's gelu, and kernels for 16-bit floats, have an error function that is as close as Abramowitz & Stegun
        7.1.26, 1.5e-7. What exponentials of fused attention may be is part of its definition.
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
"""SLEEF's and MKL's functions of 1.0 ulp, with which PyTorch computes on CPUs."""

FUSED_EXPONENTIAL: Final = {"F16": 8192, "BF16": 8192, "F32": 16, "F64": 16}
"""What the relative error of an exponential inside fused attention may be beside the library's own.

In units of 2⁻²⁴ (of 2⁻⁵³ in F64). Of PyTorch's, at most 7 units were measured in F32; for F16 and BF16, whose weights
are rounded next, at most 6,540 on AVX-512.
"""
