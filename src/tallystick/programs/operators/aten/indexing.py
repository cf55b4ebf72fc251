"""Elements read and written where indices say, sorted elements, and triangles of matrices."""
# ruff: noqa: D103  (a decorator says what an operator means)

from __future__ import annotations

from collections.abc import Sequence

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, Comparison, Typed, V
from tallystick.programs.operators.aten.arguments import axis_of, flat, lifted, part
from tallystick.programs.operators.aten.joining import cat
from tallystick.programs.operators.definition import Family, Ints, Scalar
from tallystick.programs.operators.types import taken

# What a mask chooses has a size that depends on data: BOOL and U8 indices are refused.

FAMILY = Family("aten")


# ---- one index per element


@FAMILY.moves("gather.default", "self[…, index, …]")
def gather(a: Algebra[V], self: V, dim: int, index: V, sparse_grad: bool = False) -> V:
    """Beside `dim` the index may be smaller; the result has its shape."""
    axis, x, places = axis_of(self, dim), lifted(a, self), lifted(a, index)
    _check_index(places)
    read = _first(a, x, [x.shape[axis] if i == axis else side for i, side in enumerate(places.shape)])
    return a.reshape(a.take_along(read, places, axis), index.shape)


@FAMILY.moves("take_along_dim.default", "self[…, index, …]")
def take_along_dim(a: Algebra[V], self: V, indices: V, dim: int | None = None) -> V:
    """Both are broadcast beside `dim`, and flattened where there is none."""
    _check_index(indices)
    if dim is None:
        return a.take_along(flat(a, self), flat(a, indices), 0)
    axis = axis_of(self, dim)
    if not self.shape or len(self.shape) != len(indices.shape):
        raise MalformedError(f"{len(indices.shape)} axes of indices for {len(self.shape)} axes")
    read = [here if i == axis or there == 1 else there for i, (here, there) in _sides(self, indices)]
    places = [there if i == axis or here == 1 else here for i, (here, there) in _sides(self, indices)]
    return a.take_along(a.broadcast(self, read), a.broadcast(indices, places), axis)


@FAMILY.moves("scatter.src", "self with self[index] = src")
def scatter(a: Algebra[V], self: V, dim: int, index: V, src: V) -> V:
    """The index may be smaller than `self` beside `dim`, and than `src`."""
    return _scattered(a, self, dim, index, src, add=False)


@FAMILY.moves("scatter.value", "self with self[index] = value")
def scatter_value(a: Algebra[V], self: V, dim: int, index: V, value: Scalar) -> V:
    return _scattered(a, self, dim, index, a.full(index.shape, value, self.dtype), add=False)


@FAMILY.accumulates("scatter_add.default", "self with self[index] += src")
def scatter_add(a: Algebra[V], self: V, dim: int, index: V, src: V) -> V:
    return _scattered(a, self, dim, index, src, add=True)


# ---- one index per row


@FAMILY.moves("index_select.default", "self[index]")
def index_select(a: Algebra[V], self: V, dim: int, index: V) -> V:
    x, axis, rows = lifted(a, self), axis_of(self, dim), _rows(a, index)
    chosen = a.take(x, (rows,), axis)
    return chosen if self.shape else a.reshape(chosen, ())


@FAMILY.accumulates("index_add.default", "self with self[index] += alpha · source")
def index_add(a: Algebra[V], self: V, dim: int, index: V, source: V, alpha: Scalar = 1) -> V:
    scaled = source if alpha == 1 else a.mul(source, alpha)
    return _written(a, self, dim, index, scaled, add=True)


@FAMILY.moves("index_copy.default", "self with self[index] = source")
def index_copy(a: Algebra[V], self: V, dim: int, index: V, source: V) -> V:
    return _written(a, self, dim, index, source, add=False)


@FAMILY.moves("index_fill.int_Scalar", "self with self[index] = value")
def index_fill(a: Algebra[V], self: V, dim: int, index: V, value: Scalar) -> V:
    return index_fill_tensor(a, self, dim, index, a.full((), value, self.dtype))


@FAMILY.rounds("index_fill.int_Tensor", "self with self[index] = value")
def index_fill_tensor(a: Algebra[V], self: V, dim: int, index: V, value: V) -> V:
    if value.shape:
        raise MalformedError(f"rows are filled with one number, not with {len(value.shape)} axes of them")
    sides, axis, rows = self.shape or (1,), axis_of(self, dim), _rows(a, index)
    filled = a.broadcast(a.cast(value, self.dtype), (*sides[:axis], rows.shape[0], *sides[axis + 1 :]))
    return _written(a, self, dim, index, filled, add=False)


# ---- indices of several axes


@FAMILY.moves("index.Tensor _unsafe_index.Tensor", "self[i, j, …]")
def index(a: Algebra[V], self: V, indices: Sequence[V | None]) -> V:
    """`None` keeps an axis; what is indexed comes in front unless its axes are adjacent."""
    order, axis, chosen = _indexed(self, indices)
    return a.take(a.transpose(self, order), chosen, axis)


@FAMILY.accumulates("index_put.default _unsafe_index_put.default", "self with self[i, j, …] = values")
def index_put(a: Algebra[V], self: V, indices: Sequence[V | None], values: V, accumulate: bool = False) -> V:
    """Written or added in any order; the values, of the same dtype, may be broadcast."""
    order, axis, chosen = _indexed(self, indices)
    x = a.transpose(self, order)
    updates = a.broadcast(values, taken(x.shape, [each.shape for each in chosen], axis))
    return a.transpose(a.scatter(x, chosen, axis, updates, accumulate), [order.index(i) for i in range(len(order))])


@FAMILY.exact("one_hot.default", "1 where the class is")
def one_hot(a: Algebra[V], self: V, num_classes: int = -1) -> V:
    """I64; the number of classes has to be stated."""
    if self.dtype != "I64" or num_classes < 1:
        raise MalformedError(f"{num_classes} classes, counted in {self.dtype}: they are stated, and counted in I64")
    classes = a.iota((num_classes,), 0, "I64")
    return a.cast(a.compare(a.reshape(self, (*self.shape, 1)), classes, "eq"), "I64")


# ---- a diagonal


@FAMILY.moves("diagonal.default", "self[i, i + offset]")
def diagonal(a: Algebra[V], self: V, offset: int = 0, dim1: int = 0, dim2: int = 1) -> V:
    """Along a new last axis."""
    order, places = _diagonal(a, self, offset, dim1, dim2)
    return a.take(a.transpose(self, order), places, len(order) - 2)


@FAMILY.moves("diagonal_backward.default", "∂ of a diagonal")
def diagonal_backward(a: Algebra[V], grad_output: V, input_sizes: Ints, offset: int, dim1: int, dim2: int) -> V:
    empty = a.full(input_sizes, 0, grad_output.dtype)
    order, places = _diagonal(a, empty, offset, dim1, dim2)
    x = a.scatter(a.transpose(empty, order), places, len(order) - 2, grad_output, add=False)
    return a.transpose(x, [order.index(i) for i in range(len(order))])


def _scattered(a: Algebra[V], self: V, dim: int, index: V, src: V, add: bool) -> V:
    axis, x, places, updates = axis_of(self, dim), lifted(a, self), lifted(a, index), lifted(a, src)
    _check_index(places)
    if any(i != axis and there > here for i, (here, there) in _sides(x, places)):
        raise MalformedError(f"indices of shape {list(places.shape)} for shape {list(x.shape)} along axis {axis}")
    if 0 in places.shape:
        return self
    everywhere = [places if i == axis else a.iota(places.shape, i, "I64") for i in range(len(x.shape))]
    same = [a.cast(each, "I64") for each in everywhere]
    return a.reshape(a.scatter(x, same, 0, _first(a, updates, places.shape), add), self.shape)


def _written(a: Algebra[V], self: V, dim: int, index: V, source: V, add: bool) -> V:
    x, axis, rows = lifted(a, self), axis_of(self, dim), _rows(a, index)
    return a.reshape(a.scatter(x, (rows,), axis, lifted(a, source), add), self.shape)


def _first(a: Algebra[V], x: V, sides: Sequence[int]) -> V:
    """The first elements along every axis; raises `MalformedError` where there are not enough."""
    return a.slice(x, (0,) * len(x.shape), tuple(sides), (1,) * len(x.shape))


def _sides(x: Typed, other: Typed) -> list[tuple[int, tuple[int, int]]]:
    if len(x.shape) != len(other.shape):
        raise MalformedError(f"{len(other.shape)} axes of indices for {len(x.shape)} axes")
    return list(enumerate(zip(x.shape, other.shape, strict=True)))


def _rows(a: Algebra[V], index: V) -> V:
    _check_index(index)
    if len(index.shape) > 1:
        raise MalformedError(f"a vector of indices is needed, not {len(index.shape)} axes")
    return lifted(a, index)


def _indexed(x: V, indices: Sequence[V | None]) -> tuple[list[int], int, list[V]]:
    """An order of the axes in which the indexed ones are adjacent, where they begin, and their indices."""
    axes = [i for i, each in enumerate(indices) if each is not None]
    chosen = [each for each in indices if each is not None]
    if not axes or len(indices) > len(x.shape):
        raise MalformedError(f"{len(axes)} of {len(indices)} axes indexed, of a tensor with {len(x.shape)} axes")
    for each in chosen:
        _check_index(each)
    if axes == list(range(axes[0], axes[-1] + 1)):
        return list(range(len(x.shape))), axes[0], chosen
    return axes + [i for i in range(len(x.shape)) if i not in axes], 0, chosen


def _diagonal(a: Algebra[V], x: V, offset: int, dim1: int, dim2: int) -> tuple[list[int], list[V]]:
    """An order of the axes in which both come last, and the indices of the diagonal in them."""
    first, second = axis_of(x, dim1), axis_of(x, dim2)
    if first == second or len(x.shape) < 2:
        raise MalformedError(f"axes {dim1} and {dim2} of a tensor with {len(x.shape)} axes have no diagonal")
    low, right = max(-offset, 0), max(offset, 0)
    length = max(min(x.shape[first] - low, x.shape[second] - right), 0)
    steps = a.iota((length,), 0, "I64")
    order = [i for i in range(len(x.shape)) if i not in (first, second)] + [first, second]
    return order, [a.add(steps, low), a.add(steps, right)] if length else [steps, steps]


def _check_index(x: Typed) -> None:
    if x.dtype not in {"I64", "I32"}:
        raise MalformedError(f"indices are I64 or I32, not {x.dtype}")


# Sorted elements, triangles of matrices, and differences of neighbours.


@FAMILY.moves("sort.default", "sorted, and from where")
def sort(a: Algebra[V], self: V, dim: int = -1, descending: bool = False) -> tuple[V, V]:
    """Values and I64 indices; of equal values, first the first."""
    values, indices = a.sort(lifted(a, self), axis_of(self, dim), descending)
    return a.reshape(values, self.shape), a.reshape(indices, self.shape)


@FAMILY.moves("sort.stable", "sorted, and from where")
def sort_stable(a: Algebra[V], self: V, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[V, V]:
    return sort(a, self, dim, descending)


@FAMILY.moves("argsort.default", "from where, sorted")
def argsort(a: Algebra[V], self: V, dim: int = -1, descending: bool = False) -> V:
    return sort(a, self, dim, descending)[1]


@FAMILY.moves("argsort.stable", "from where, sorted")
def argsort_stable(a: Algebra[V], self: V, stable: bool, dim: int = -1, descending: bool = False) -> V:
    return argsort(a, self, dim, descending)


@FAMILY.moves("topk.default", "the k greatest, and from where")
def topk(a: Algebra[V], self: V, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[V, V]:
    """Sorted in any case; values and I64 indices."""
    axis, x = axis_of(self, dim), lifted(a, self)
    if not 0 <= k <= x.shape[axis]:
        raise MalformedError(f"{k} of {x.shape[axis]} elements")
    values, indices = (part(a, each, axis, 0, k) for each in a.sort(x, axis, largest))
    return (values, indices) if self.shape or k != 1 else (a.reshape(values, ()), a.reshape(indices, ()))


@FAMILY.moves("tril.default", "0 above a diagonal")
def tril(a: Algebra[V], self: V, diagonal: int = 0) -> V:
    """What is kept: column ≤ row + diagonal."""
    return _triangle(a, self, diagonal, "le")


@FAMILY.moves("triu.default", "0 below a diagonal")
def triu(a: Algebra[V], self: V, diagonal: int = 0) -> V:
    """What is kept: column ≥ row + diagonal."""
    return _triangle(a, self, diagonal, "ge")


@FAMILY.composite("diff.default", "differences of neighbours, n times")
def diff(a: Algebra[V], self: V, n: int = 1, dim: int = -1, prepend: V | None = None, append: V | None = None) -> V:
    """BOOL: whether neighbours differ."""
    if n < 0 or not self.shape:
        raise MalformedError(f"{n} differences along a tensor with {len(self.shape)} axes")
    parts = [x for x in (prepend, self, append) if x is not None]
    x, axis = cat(a, parts, dim) if len(parts) > 1 else self, axis_of(self, dim)
    for _ in range(min(n, x.shape[axis])):
        x = _neighbours(a, x, axis)
    return x


def _triangle(a: Algebra[V], x: V, diagonal: int, how: Comparison) -> V:
    if len(x.shape) < 2:
        raise MalformedError(f"a matrix has 2 axes, not {len(x.shape)}")
    sides = x.shape[-2:]
    limit = a.add(a.iota((sides[0], 1), 0, "I64"), diagonal)
    return a.where(a.compare(a.iota((1, sides[1]), 1, "I64"), limit, how), x, 0)


def _neighbours(a: Algebra[V], x: V, axis: int) -> V:
    side = x.shape[axis]
    after, before = part(a, x, axis, min(1, side), side), part(a, x, axis, 0, max(side - 1, 0))
    if x.dtype == "BOOL":
        return a.logical_xor(after, before)
    return a.cast(a.sub(a.wide(after), a.wide(before)), x.dtype)
