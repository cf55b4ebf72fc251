"""Engines that are known to exceed bounds; judges of openings read this table before they reject a result.

An opening names the engine that computed it. If that engine is known to exceed the bound of an operator, a result
beyond the bound is not evidence against the prover: the judge says so, and the verdict is inconclusive. A prover that
falsely names such an engine gains no more than this: results inside the bound are judged as usual, and results beyond
it are never accepted. A dispute must end with a loser, so its referee does not read this table: docs/bounds.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


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
"""Measured by tests/operators/test_engines.py."""


def outside(engine: str | None, operator: str, dtype: str) -> Outside | None:
    """The line of the table about a result with `dtype` of this operator, or `None`."""
    return next(
        (each for each in lines_of(engine) if dtype in each.dtypes and operator in (each.operators or {operator})), None
    )


def lines_of(engine: str | None) -> Iterator[Outside]:
    """All lines about an engine."""
    return (each for each in OUTSIDE if each.engine == engine)
