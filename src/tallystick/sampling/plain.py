"""The integer operations of the fixed-point functions on NumPy arrays, and on Python's own numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from tallystick.operators.algebra import Comparison

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


@dataclass(frozen=True)
class Plain:
    """`Integers` by the operators of Python; `choice` implements `where` for the kind of number in use."""

    choice: Callable[[Any, Any, Any], Any]

    def add(self, x: Any, y: Any) -> Any:
        """I64."""
        return x + y

    def sub(self, x: Any, y: Any) -> Any:
        """I64."""
        return x - y

    def mul(self, x: Any, y: Any) -> Any:
        """I64."""
        return x * y

    def shift_right(self, x: Any, y: Any) -> Any:
        """Arithmetic shift, I64."""
        return x >> y

    def compare(self, x: Any, y: Any, how: Comparison) -> Any:
        """BOOL."""
        return _COMPARISONS[how](x, y)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """I64."""
        return self.choice(condition, x, y)


ARRAYS: Final = Plain(np.where)
NUMBERS: Final = Plain(lambda condition, x, y: x if condition else y)
