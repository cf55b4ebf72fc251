"""Traced sums and products by fixed numbers, collected into one weighted sum: Σ fᵢ·tᵢ + c."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.fx import Node

ADDITION: Final = "aten.add.Tensor"
PRODUCTS: Final = frozenset({"aten.mul.Tensor", "aten.mul.Scalar"})


@dataclass(frozen=True)
class Weighted:
    """The tensors of a sum with their `factors`, and the tensor or number that is added."""

    factors: Mapping[Node, float]
    constant: torch.Tensor | float = 0.0

    def plus(self, other: Weighted, factor: float) -> Weighted:
        """The sum of this one and `factor` times the other."""
        grown = other.times(factor)
        names = {**self.factors, **grown.factors}
        factors = {each: self.factors.get(each, 0.0) + grown.factors.get(each, 0.0) for each in names}
        return Weighted(factors, self.constant + grown.constant)

    def times(self, factor: float) -> Weighted:
        """The product of this sum and a number."""
        factors = {each: number * factor for each, number in self.factors.items()}
        return Weighted(factors, self.constant * factor)

    def kernel(self) -> Callable[..., torch.Tensor]:
        """The sum as a function of its tensors."""
        factors, constant = list(self.factors.values()), self.constant
        if isinstance(constant, float):
            first, *others = factors
            return lambda *tensors: _added(tensors[0] * first + constant, tensors[1:], others)
        return lambda *tensors: _added(constant, tensors, factors)


def weighted(node: Node, known: Mapping[Node, Any], found: Mapping[Node, Weighted]) -> Weighted | None:
    """`node` as a weighted sum, if it is one."""
    if str(node.target) == ADDITION:
        left, right = (_read(each, known, found) for each in node.args)
        factor = node.kwargs.get("alpha", 1.0)
        if left is not None and right is not None and isinstance(factor, int | float):
            return left.plus(right, float(factor))
    if str(node.target) in PRODUCTS:
        for each, other in (node.args, node.args[::-1]):
            number, operand = _number(each, known), _read(other, known, found)
            if number is not None and operand is not None:
                return operand.times(number)
    return None


def _read(given: Any, known: Mapping[Node, Any], found: Mapping[Node, Weighted]) -> Weighted | None:
    if not isinstance(given, Node):
        return Weighted({}, float(given)) if isinstance(given, int | float) else None
    if given in known:
        return Weighted({}, known[given])
    return found.get(given, Weighted({given: 1.0}))


def _number(given: Any, known: Mapping[Node, Any]) -> float | None:
    held = known.get(given) if isinstance(given, Node) else given
    if isinstance(held, torch.Tensor):
        return float(held) if held.numel() == 1 and held.is_floating_point() else None
    return float(held) if isinstance(held, int | float) else None


def _added(total: torch.Tensor, tensors: tuple[torch.Tensor, ...], factors: list[float]) -> torch.Tensor:
    for tensor, factor in zip(tensors, factors, strict=True):
        total = torch.add(total, tensor, alpha=factor)
    return total
