"""Shape rules of the primitives: the shapes of results, or `MalformedError`; nothing is allocated."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Axes, Number

Shape = tuple[int, ...]

FLOATS: Final = frozenset({"F16", "BF16", "F32", "F64"})
INTEGERS: Final = {
    **{f"I{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"U{bits}": (0, 2**bits - 1) for bits in (8, 32, 64)},
}
"""The least and the greatest number of each integer type."""
NUMBERS: Final = FLOATS | INTEGERS.keys()
COMPUTED: Final = NUMBERS | {"BOOL"}


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """NumPy's rule: aligned at the end, sides of 1 stretch."""
    length = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    return tuple(_broadcast_sides(sides, shapes) for sides in zip(*padded, strict=True))


def _broadcast_sides(sides: tuple[int, ...], shapes: Sequence[Shape]) -> int:
    stretched = {side for side in sides if side != 1}
    if len(stretched) > 1:
        raise MalformedError(f"shapes {shown(shapes)} do not broadcast")
    return stretched.pop() if stretched else 1


def check_broadcast(shape: Shape, wanted: Sequence[int]) -> None:
    """Raise unless `broadcast_to(shape, wanted)` exists."""
    tail = tuple(wanted)[len(wanted) - len(shape) :]
    if len(shape) > len(wanted) or any(side not in (1, to) for side, to in zip(shape, tail, strict=True)):
        raise MalformedError(f"shape {list(shape)} does not broadcast to {shown(wanted)}")


def check_axes(shape: Shape, axes: Sequence[int]) -> None:
    """Raise unless `axes` are distinct axes of `shape`, counted from 0."""
    if len(axes) > len(shape) or len(set(axes)) != len(axes) or any(not 0 <= axis < len(shape) for axis in axes):
        raise MalformedError(f"axes {shown(axes)} of a tensor with {len(shape)} axes")


def check_lengths(shape: Shape, *lists: Sequence[int]) -> None:
    """Raise unless each list has one entry per axis."""
    if any(len(numbers) != len(shape) for numbers in lists):
        raise MalformedError(f"{len(shape)} numbers are needed, one per axis, not {[len(each) for each in lists]}")


def reduced(shape: Shape, axes: Axes, keep: bool) -> Shape:
    """The shape without `axes`, or with sides of 1 in their place."""
    check_axes(shape, axes)
    return tuple(1 if i in axes else side for i, side in enumerate(shape) if keep or i not in axes)


def without(shape: Shape, axes: Collection[int]) -> Shape:
    """The sides that are not in `axes`."""
    return tuple(side for i, side in enumerate(shape) if i not in axes)


def dotted(x: Shape, y: Shape, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes]) -> Shape:
    """Batch sides, free sides of `x`, free sides of `y`."""
    check_axes(x, contract[0] + batch[0])
    check_axes(y, contract[1] + batch[1])
    for ours, theirs in (contract, batch):
        if [x[i] for i in ours] != [y[i] for i in theirs]:
            raise MalformedError(f"axes {list(ours)} of {list(x)} do not match axes {list(theirs)} of {list(y)}")
    return tuple(x[i] for i in batch[0]) + without(x, contract[0] + batch[0]) + without(y, contract[1] + batch[1])


def reshaped(shape: Shape, wanted: Sequence[int]) -> Shape:
    """`wanted`, if it holds as many elements."""
    if any(side < 0 for side in wanted) or math.prod(shape) != math.prod(wanted):
        raise MalformedError(f"shape {list(shape)} does not fit {shown(wanted)}")
    return tuple(wanted)


def sliced(shape: Shape, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Shape:
    """How many indices each range holds."""
    check_lengths(shape, starts, stops, steps)
    for side, start, stop, step in zip(shape, starts, stops, steps, strict=True):
        if not (0 <= start <= stop <= side and step >= 1):
            raise MalformedError(f"range {start}:{stop}:{step} of a side of {side}")
    return tuple(-((start - stop) // step) for start, stop, step in zip(starts, stops, steps, strict=True))


def padded(shape: Shape, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Shape:
    """The shape after StableHLO `pad`: interior first, then both edges; negative edges crop."""
    check_lengths(shape, low, high, interior)
    if any(gap < 0 for gap in interior):
        raise MalformedError(f"interior padding {shown(interior)} is negative")
    spread = [side + max(side - 1, 0) * gap for side, gap in zip(shape, interior, strict=True)]
    sides = tuple(below + side + above for below, side, above in zip(low, spread, high, strict=True))
    if any(side < 0 for side in sides):
        raise MalformedError(f"shape {list(shape)} cropped by {shown(low)} and {shown(high)} has a negative side")
    return sides


def concatenated(shapes: Sequence[Shape], axis: int) -> Shape:
    """The sum of the sides along `axis`; the others are equal."""
    if not shapes:
        raise MalformedError("nothing to concatenate")
    first = shapes[0]
    check_axes(first, (axis,))
    if any(len(shape) != len(first) or without(shape, (axis,)) != without(first, (axis,)) for shape in shapes):
        raise MalformedError(f"shapes {shown(shapes)} do not concatenate along axis {axis}")
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def taken(shape: Shape, indices: Sequence[Shape], axis: int) -> Shape:
    """The broadcast shape of `indices` in place of as many axes from `axis` on."""
    check_axes(shape, tuple(range(axis, axis + min(len(indices), len(shape) + 1))))
    if not indices:
        raise MalformedError("no index tensors")
    chosen, sides = broadcast_shapes(indices), shape[axis : axis + len(indices)]
    if 0 in sides and 0 not in chosen:
        raise MalformedError(f"nothing can be indexed along axes of sides {list(sides)}")
    return shape[:axis] + chosen + shape[axis + len(indices) :]


def windowed(shape: Shape, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Shape:
    """⌊(side − (size − 1)·dilation − 1) / stride⌋ + 1 positions along each axis, then the window's sides."""
    check_axes(shape, axes)
    check_lengths(tuple(axes), sizes, strides, dilations)
    if any(number < 1 for number in (*sizes, *strides, *dilations)):
        raise MalformedError(f"windows of {shown(sizes)}, strides {shown(strides)}, dilations {shown(dilations)}")
    sides = list(shape)
    for axis, size, stride, dilation in zip(axes, sizes, strides, dilations, strict=True):
        sides[axis] = (shape[axis] - (size - 1) * dilation - 1) // stride + 1
        if sides[axis] < 1:
            raise MalformedError(f"a side of {shape[axis]} holds no window of {size} with dilation {dilation}")
    return (*sides, *sizes)


def check_number(number: Number, dtype: str) -> None:
    """Raise unless `number` is a constant of `dtype`: any for floats, a whole one in range for integers."""
    if dtype in FLOATS:
        return
    least, greatest = INTEGERS.get(dtype, (0, 1))
    if not math.isfinite(number) or number != int(number) or not least <= number <= greatest:
        raise MalformedError(f"{number!r:.40} is no {dtype}")


def shown(numbers: object) -> str:
    """Numbers as text of at most 101 characters."""
    text = str(list(numbers) if isinstance(numbers, tuple) else numbers)
    return text if len(text) <= 100 else f"{text[:100]}…"
