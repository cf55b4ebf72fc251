"""Error bounds of the elementary functions in honest libraries, in units in the last place.

A figure U means |computed − exact| ≤ U ulp(exact) + A, in the dtype in which the function is computed; A is 0 except in
some fused kernels. The figures of `ANY` hold for every engine. For a device that states its library, smaller figures
can be used. docs/bounds.md gives the sources and measurements of the figures, and a test checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final


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
