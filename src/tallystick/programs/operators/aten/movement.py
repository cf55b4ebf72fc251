"""Views, copies and conversions: elements get other indices, or are moved or converted; nothing else is computed."""
# ruff: noqa: D103  (a decorator says what an operator means)

from __future__ import annotations

import math
from collections.abc import Sequence

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.aten.arguments import axes_of, axis_of
from tallystick.programs.operators.definition import Dtype, Family, Ints
from tallystick.programs.operators.types import broadcast_shapes

FAMILY = Family("aten")


# ---- the same elements, perhaps converted


@FAMILY.moves(
    "alias.default clone.default contiguous.default detach.default detach_.default lift.default "
    "lift_fresh.default lift_fresh_copy.default resolve_conj.default resolve_neg.default",
    "self",
)
def same(a: Algebra[V], self: V) -> V:
    """The value itself: graphs have no aliases."""
    return self


@FAMILY.rounds("_to_copy.default", "self as dtype")
def to_copy(a: Algebra[V], self: V, dtype: Dtype | None = None) -> V:
    """Floats round to nearest even, floats to integers truncate."""
    return a.cast(self, dtype or self.dtype)


@FAMILY.rounds("to.dtype to.device", "self as dtype")
def to(a: Algebra[V], self: V, dtype: Dtype, copy: bool = False) -> V:
    """As `_to_copy`; there is one device."""
    return a.cast(self, dtype)


@FAMILY.rounds("to.dtype_layout", "self as dtype")
def to_layout(a: Algebra[V], self: V, dtype: Dtype | None = None, copy: bool = False) -> V:
    return a.cast(self, dtype or self.dtype)


@FAMILY.rounds("to.other", "self as other")
def to_other(a: Algebra[V], self: V, other: V, copy: bool = False) -> V:
    return a.cast(self, other.dtype)


@FAMILY.rounds("type_as.default", "self as other")
def type_as(a: Algebra[V], self: V, other: V) -> V:
    return a.cast(self, other.dtype)


@FAMILY.rounds("copy.default", "src as self")
def copy(a: Algebra[V], self: V, src: V) -> V:
    return a.broadcast(a.cast(src, self.dtype), self.shape)


@FAMILY.moves("_assert_tensor_metadata.default", "nothing, if a is as stated")
def assert_tensor_metadata(
    algebra: Algebra[V], /, a: V, size: Ints | None = None, stride: Ints | None = None, dtype: Dtype | None = None
) -> tuple[V, ...]:
    """No result; refused where `a` has another dtype or shape. Strides say nothing about values."""
    if dtype not in (None, a.dtype) or (size is not None and tuple(size) != a.shape):
        raise MalformedError(f"{a.dtype} of shape {list(a.shape)} was asserted to be {dtype} of shape {size!s:.60}")
    return ()


# ---- other shapes for the same elements


@FAMILY.moves("_unsafe_view.default view.default", "row-major")
def view(a: Algebra[V], self: V, size: Ints) -> V:
    return a.reshape(self, inferred(math.prod(self.shape), size))


@FAMILY.moves("reshape.default", "row-major")
def reshape(a: Algebra[V], self: V, shape: Ints) -> V:
    return view(a, self, shape)


@FAMILY.moves("_reshape_alias.default", "row-major")
def reshape_alias(a: Algebra[V], self: V, size: Ints, stride: Ints) -> V:
    return view(a, self, size)


@FAMILY.moves("reshape_as.default view_as.default", "row-major")
def view_as(a: Algebra[V], self: V, other: V) -> V:
    return a.reshape(self, other.shape)


@FAMILY.moves("flatten.using_ints", "axes become one")
def flatten(a: Algebra[V], self: V, start_dim: int = 0, end_dim: int = -1) -> V:
    """Both axes included; a 0-dimensional tensor gets one axis."""
    start, end = axis_of(self, start_dim), axis_of(self, end_dim)
    if start > end:
        raise MalformedError(f"axes {start_dim} to {end_dim} of a tensor with {len(self.shape)} axes")
    sides = self.shape or (1,)
    return a.reshape(self, (*sides[:start], math.prod(sides[start : end + 1]), *sides[end + 1 :]))


@FAMILY.moves("unflatten.int", "an axis becomes several")
def unflatten(a: Algebra[V], self: V, dim: int, sizes: Ints) -> V:
    axis = axis_of(self, dim)
    if not self.shape or not sizes:
        raise MalformedError(f"axis {dim} of shape {list(self.shape)} cannot become {len(sizes)} axes")
    split = inferred(self.shape[axis], sizes)
    return a.reshape(self, (*self.shape[:axis], *split, *self.shape[axis + 1 :]))


@FAMILY.moves("unsqueeze.default", "an axis of side 1")
def unsqueeze(a: Algebra[V], self: V, dim: int) -> V:
    axes = len(self.shape) + 1
    if not -axes <= dim < axes:
        raise MalformedError(f"axis {dim} of a tensor with {axes} axes")
    return a.reshape(self, (*self.shape[: dim % axes], 1, *self.shape[dim % axes :]))


@FAMILY.moves("squeeze.default", "without sides of 1")
def squeeze(a: Algebra[V], self: V) -> V:
    return a.reshape(self, [side for side in self.shape if side != 1])


@FAMILY.moves("squeeze.dim", "without one side of 1")
def squeeze_dim(a: Algebra[V], self: V, dim: int) -> V:
    return squeeze_dims(a, self, (dim,))


@FAMILY.moves("squeeze.dims", "without some sides of 1")
def squeeze_dims(a: Algebra[V], self: V, dim: Ints) -> V:
    axes = {axis_of(self, each) for each in dim}
    if len(axes) != len(dim):
        raise MalformedError(f"axes {tuple(dim)!s:.60} repeat")
    return a.reshape(self, [side for i, side in enumerate(self.shape) if side != 1 or i not in axes])


@FAMILY.moves("expand.default", "repeated")
def expand(a: Algebra[V], self: V, size: Ints, implicit: bool = False) -> V:
    """-1 keeps a side; new axes come in front."""
    new = len(size) - len(self.shape)
    kept = [self.shape[i - new] if side == -1 and i >= new else side for i, side in enumerate(size)]
    return a.broadcast(self, kept)


@FAMILY.moves("expand_as.default", "repeated")
def expand_as(a: Algebra[V], self: V, other: V) -> V:
    return a.broadcast(self, other.shape)


@FAMILY.moves("broadcast_tensors.default", "repeated")
def broadcast_tensors(a: Algebra[V], tensors: Sequence[V]) -> tuple[V, ...]:
    shape = broadcast_shapes([x.shape for x in tensors])
    return tuple(a.broadcast(x, shape) for x in tensors)


@FAMILY.moves("broadcast_to.default", "repeated")
def broadcast_to(a: Algebra[V], self: V, size: Ints) -> V:
    return expand(a, self, size, False)


# ---- axes in another order


@FAMILY.moves("permute.default", "axes in another order")
def permute(a: Algebra[V], self: V, dims: Ints) -> V:
    return a.transpose(self, [axis_of(self, dim) for dim in dims])


@FAMILY.moves("transpose.int", "two axes swapped")
def transpose(a: Algebra[V], self: V, dim0: int, dim1: int) -> V:
    """A 0-dimensional tensor stays."""
    axes = list(range(len(self.shape)))
    first, second = axis_of(self, dim0), axis_of(self, dim1)
    if axes:
        axes[first], axes[second] = second, first
    return a.transpose(self, axes)


@FAMILY.moves("swapaxes.default", "two axes swapped")
def swapaxes(a: Algebra[V], self: V, axis0: int, axis1: int) -> V:
    return transpose(a, self, axis0, axis1)


@FAMILY.moves("t.default", "transposed")
def t(a: Algebra[V], self: V) -> V:
    if len(self.shape) > 2:
        raise MalformedError(f"a matrix has 2 axes, not {len(self.shape)}")
    return a.transpose(self, range(len(self.shape))[::-1])


@FAMILY.moves("numpy_T.default", "axes reversed")
def numpy_t(a: Algebra[V], self: V) -> V:
    return a.transpose(self, range(len(self.shape))[::-1])


@FAMILY.moves("mT.default", "matrices transposed")
def matrix_t(a: Algebra[V], self: V) -> V:
    if len(self.shape) < 2:
        raise MalformedError(f"a matrix has 2 axes, not {len(self.shape)}")
    return transpose(a, self, -2, -1)


@FAMILY.moves("movedim.intlist", "axes moved")
def movedim(a: Algebra[V], self: V, source: Ints, destination: Ints) -> V:
    sources, destinations = [axis_of(self, dim) for dim in source], [axis_of(self, dim) for dim in destination]
    if len(source) != len(destination) or len(set(sources)) != len(sources) or len(set(destinations)) != len(sources):
        raise MalformedError(f"axes {tuple(source)!s:.60} cannot move to {tuple(destination)!s:.60}")
    if not self.shape:
        return self
    others = iter(axis for axis in range(len(self.shape)) if axis not in sources)
    placed = dict(zip(destinations, sources, strict=True))
    return a.transpose(self, [placed[i] if i in placed else next(others) for i in range(len(self.shape))])


@FAMILY.moves("movedim.int", "an axis moved")
def movedim_int(a: Algebra[V], self: V, source: int, destination: int) -> V:
    return movedim(a, self, (source,), (destination,))


@FAMILY.moves("flip.default", "reversed")
def flip(a: Algebra[V], self: V, dims: Ints) -> V:
    """Along no axis: the tensor itself."""
    return a.flip(self, axes_of(self, dims)) if dims else self


def inferred(elements: int, size: Sequence[int]) -> tuple[int, ...]:
    """`size` with the side that is -1 computed; raises `MalformedError` where it cannot be."""
    if list(size).count(-1) == 0:
        return tuple(size)
    known = math.prod(side for side in size if side != -1)
    if list(size).count(-1) > 1 or known <= 0 or elements % known:
        raise MalformedError(f"{elements} elements do not determine the shape {tuple(size)!s:.60}")
    return tuple(elements // known if side == -1 else side for side in size)


# Memory whose axes lie in another order: for autograd of what writes into slices. Values do not depend on it.


@FAMILY.moves("new_empty_strided.default", "0")
def new_empty_strided(a: Algebra[V], self: V, size: Ints, stride: Ints, dtype: Dtype | None = None) -> V:
    """As `new_zeros`; the strides say in which order its axes lie, without gaps, and values do not depend on them."""
    if len(size) != len(stride) or not _are_dense(size, stride):
        raise MalformedError(f"strides {tuple(stride)!s:.60} for shape {tuple(size)!s:.60} leave gaps")
    return a.full(size, 0, dtype or self.dtype)


def _are_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill a block of memory; PyTorch gives axes of one element, and empty tensors, any stride."""
    step = 1
    for along, side in sorted((along, side) for side, along in zip(size, stride, strict=True) if side != 1):
        if along != step:
            return 0 in size
        step *= side
    return True
