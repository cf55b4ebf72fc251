"""How far rounding may take a computed sum from the exact one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from tallystick.programs.operators.arrays import ArrayLibrary
from tallystick.programs.operators.precision import REFERENCE

# A model of rounding bounds how much a computed sum of k terms may differ from the exact one, for one element of a
# result with the stated confidence. Judges take `Deterministic`: γ_k Σ|t|, whatever the data and the order (Higham
# 2002, §3.1). It assumes only IEEE 754. docs/bounds.md derives it, and two models that assume more, for studies.

RESCALED_TILE: Final = 64


@dataclass(frozen=True)
class RoundedSums:
    """Sums of `terms` terms each, as arrays of one library.

    `value()` is the size of the exact sum; `magnitude` bounds Σ|t| and `norm()` bounds ‖t‖₂ over the terms of an honest
    evaluation.
    `unit` is the unit roundoff of the running sum. `products` means that each term is itself a rounded product, `plain`
    that the operator computes nothing but the sum. `rescaling` is the number of roundings of a rescaled running sum for
    each further tile of `RESCALED_TILE` terms. `short` is the number of roundings per term to a 16-bit dtype, in
    kernels that keep partial sums in it; every model bounds these in the worst case. `reference` is the unit roundoff
    of the sums that the verifier computes itself. Without `signed`, `value()` only bounds the size of the exact sum.
    """

    terms: Any
    unit: float
    value: Callable[[], Any]
    magnitude: Any
    norm: Callable[[], Any]
    products: bool = False
    plain: bool = False
    rescaling: int = 0
    short: int = 0
    reference: float = REFERENCE.unit
    signed: bool = True

    @property
    def roundings(self) -> Any:
        """The largest number of roundings of one term."""
        if isinstance(self.terms, int):
            return max(self.terms - 1.0, 0.0) + self.products + self.rescalings
        return np.maximum(np.asarray(self.terms, np.float64) - 1, 0) + self.products + self.rescalings

    @property
    def rescalings(self) -> Any:
        """The number of roundings of whole running sums, between tiles."""
        if not self.rescaling:
            return 0
        tiles = np.ceil(np.asarray(self.terms, np.float64) / RESCALED_TILE)
        return self.rescaling * np.maximum(tiles - 1, 0)


class Model(Protocol):
    """A model of rounding errors."""

    @property
    def name(self) -> str:
        """A short name, for tables."""

    @property
    def failure(self) -> float:
        """An upper bound on the probability that one element of an honest evaluation exceeds its bound."""

    def spread(self, sums: RoundedSums, library: ArrayLibrary) -> Any:
        """A bound on |computed − exact| as an array of `library`."""


@dataclass(frozen=True)
class Deterministic:
    """γ_k = ku / (1 − ku)."""

    name: str = "deterministic"
    failure: float = 0.0

    def spread(self, sums: RoundedSums, library: ArrayLibrary) -> Any:
        """γ_k Σ|t|; infinite if ku ≥ 1."""
        return lifted(library, worst_factor(sums.roundings, sums.unit, sums.reference)) * sums.magnitude


DETERMINISTIC: Final = Deterministic()


def worst_factor(roundings: Any, unit: float, reference: float = REFERENCE.unit) -> Any:
    """γ_k of an honest evaluation plus γ_k of the reference's own sums; infinite if ku ≥ 1."""
    return _gamma(roundings, unit) + _gamma(roundings, reference)


def lifted(library: ArrayLibrary, numbers: Any) -> Any:
    """NumPy numbers, converted for arithmetic with arrays of `library`."""
    return float(numbers) if np.ndim(numbers) == 0 else library.asarray(numbers, "F64")


def _gamma(roundings: Any, unit: float) -> Any:
    if isinstance(roundings, int | float):
        return roundings * unit / (1 - roundings * unit) if roundings * unit < 1 else math.inf
    relative = np.asarray(roundings, np.float64) * unit
    return np.where(relative < 1, relative / np.maximum(1 - relative, 2.0**-1000), np.inf)
