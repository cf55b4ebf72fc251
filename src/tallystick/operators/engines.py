"""Engines that are known to lie outside the bounds: what judges consult before they accuse.

An opening says which engine computed it. Where that engine is known to leave the bound of an operator, a result outside
it is no evidence against anybody: the judge says so and the verdict is inconclusive. Naming such an engine gains a
prover nothing but that: what lies inside its bound is judged as ever, and what lies outside is never accepted. A
dispute has to end with a loser, so its referee does not read this table: docs/bounds.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Outside:
    """One line of the table: results of `dtypes` of these operators (of all, where empty) by an engine.

    `factor` is the largest error ÷ radius that was measured with `version`; others were not tried and count as alike.
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
    """The line of the table about a result of `dtype` of this operator, if there is one."""
    return next(
        (each for each in lines_of(engine) if dtype in each.dtypes and operator in (each.operators or {operator})), None
    )


def lines_of(engine: str | None) -> Iterator[Outside]:
    """All lines about an engine."""
    return (each for each in OUTSIDE if each.engine == engine)
