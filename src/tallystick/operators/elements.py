"""The primitives that work one element at a time, for algebras that treat all of them by one rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tallystick.operators.algebra import Number, Typed, V

R = TypeVar("R", bound=Typed, covariant=True)


class Unary(Protocol[V]):
    """A primitive of one operand."""

    def __call__(self, x: V) -> V:
        """Element by element."""
        ...


class Binary(Protocol[R]):
    """A primitive of two operands, one of which may be a constant."""

    def __call__(self, x: Any, y: Any) -> R:
        """Element by element."""
        ...


class ByElement(ABC, Generic[V]):
    """The elementwise part of an `Algebra[V]`: every primitive annotated here calls `_by_element` with its name."""

    neg: Unary[V]
    abs: Unary[V]
    sign: Unary[V]
    floor: Unary[V]
    ceil: Unary[V]
    trunc: Unary[V]
    round: Unary[V]
    sqrt: Unary[V]
    rsqrt: Unary[V]
    exp: Unary[V]
    expm1: Unary[V]
    log: Unary[V]
    log1p: Unary[V]
    sin: Unary[V]
    cos: Unary[V]
    tanh: Unary[V]
    erf: Unary[V]
    sigmoid: Unary[V]
    is_finite: Unary[V]
    logical_not: Unary[V]
    add: Binary[V]
    sub: Binary[V]
    mul: Binary[V]
    div: Binary[V]
    pow: Binary[V]
    maximum: Binary[V]
    minimum: Binary[V]
    floor_divide: Binary[V]
    remainder: Binary[V]
    logical_and: Binary[V]
    logical_or: Binary[V]
    logical_xor: Binary[V]
    shift_left: Binary[V]
    shift_right: Binary[V]

    def __init__(self) -> None:
        for name in ByElement.__annotations__:
            setattr(self, name, partial(self._by_element, name))

    @abstractmethod
    def _by_element(self, name: str, x: V | Number, y: V | Number | None = None) -> V:
        """The primitive `name` of one operand, or of two."""
