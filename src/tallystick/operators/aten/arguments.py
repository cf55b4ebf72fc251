"""How ATen's attributes are read: axes from the end, absent axes, promotion of dtypes."""

from __future__ import annotations

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Typed


def axis_of(x: Typed, dim: int) -> int:
    """`dim` counted from 0; a 0-dimensional tensor has axis 0. Raises `MalformedError` outside the shape."""
    sides = max(len(x.shape), 1)
    if not -sides <= dim < sides:
        raise MalformedError(f"axis {dim} of a tensor with {len(x.shape)} axes")
    return dim % sides
