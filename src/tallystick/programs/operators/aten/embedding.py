"""Rows of a table by index, alone or in bags, and the gradients of the table."""

from __future__ import annotations

import math
from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Typed, V
from tallystick.programs.operators.aten.contraction import check_rank
from tallystick.programs.operators.definition import Family

FAMILY: Final = Family("aten")


@FAMILY.moves("embedding.default", "rows of a table")
def embedding(
    a: Algebra[V], weight: V, indices: V, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> V:
    """[n,d] and indices […] give […,d]; the other attributes matter to the gradient alone."""
    check_rank(weight, 2)
    return a.take(weight, [indices], 0)


@FAMILY.accumulates("embedding_dense_backward.default", "each row's gradients added up")
def embedding_dense_backward(
    a: Algebra[V], grad_output: V, indices: V, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> V:
    """[…,d] and indices […] give [num_weights,d]; row `padding_idx` gets nothing.

    Kernels add in the type of the gradient, so F16 and BF16 round at every addition.
    """
    if num_weights < 0 or not grad_output.shape or grad_output.shape[:-1] != indices.shape:
        raise MalformedError(f"gradients {list(grad_output.shape)} for indices {list(indices.shape)}")
    updates = grad_output
    if scale_grad_by_freq:
        zeros = a.full((num_weights,), 0, indices.dtype)
        counts = a.scatter(zeros, [indices], 0, a.full(indices.shape, 1, indices.dtype), add=True)
        often = a.cast(a.take(counts, [indices], 0), updates.dtype)
        updates = a.div(updates, a.reshape(often, (*indices.shape, 1)))
    kept = a.reshape(a.compare(indices, padding_idx, "ne"), (*indices.shape, 1))
    table = a.full((num_weights, grad_output.shape[-1]), 0, updates.dtype)
    return a.scatter(table, [indices], 0, a.where(kept, updates, 0), add=True)


# Sums, means and maxima of rows of a table over bags of indices, and their gradients.
#
# Bag b holds the indices from `offsets[b]` to the next offset. `mode` is 0 for sums, 1 for means, 2 for maxima. Kernels
# add in the type of the table. For sums of 16 and 32 bits without padding they leave `offset2bag` empty.

SUM: Final = 0
MEAN: Final = 1
MAX: Final = 2
_RESULT: Final = "rows of a table summed, averaged or maximized over bags; the bag of each, and sizes"


@FAMILY.composite("_embedding_bag.default _embedding_bag_forward_only.default", _RESULT)
def embedding_bag(
    a: Algebra[V],
    weight: V,
    indices: V,
    offsets: V,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: V | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[V, V, V, V]:
    """[r,d], [n] and [b] give [b,d], [n] or [0], [b], and [b] or [b,d]: for maxima the row that each comes from."""
    _check(weight, indices, mode, per_sample_weights)
    check_rank(offsets, 1)
    bags = offsets.shape[0] - include_last_offset
    if bags < 0 or offsets.dtype != indices.dtype:
        raise MalformedError(f"{bags} bags of {offsets.dtype} offsets for {indices.dtype} indices")
    place = _bag_of(a, indices, offsets)
    kept = a.compare(indices, padding_idx, "ne")
    ones = a.cast(kept, indices.dtype)
    sizes = _added(a, a.full((bags,), 0, indices.dtype), place, ones)
    is_fast = mode == SUM and weight.dtype != "F64" and padding_idx < 0
    shown = a.full((0,), 0, indices.dtype) if is_fast else place
    rows = a.take(weight, [indices], 0)
    if mode == MAX:
        bag = a.iota((bags, *place.shape), 0, place.dtype)
        members = a.compare(bag, a.reshape(place, (1, *place.shape)), "eq")  # [b,n]: the places that a bag holds
        result, chosen = _greatest(a, rows, indices, a.logical_and(members, a.reshape(kept, (1, *indices.shape))))
        return result, shown, sizes, chosen
    if per_sample_weights is not None:
        rows = a.mul(rows, a.reshape(per_sample_weights, (*indices.shape, 1)))
    rows = a.where(a.reshape(kept, (*indices.shape, 1)), rows, 0)
    total = _added(a, a.full((bags, weight.shape[1]), 0, weight.dtype), place, rows)
    if mode == SUM:
        none = a.full((bags,), 0, indices.dtype)
        return total, shown, none, none
    return a.div(total, _divisor(a, sizes, weight.dtype)), shown, sizes, sizes


@FAMILY.composite("_embedding_bag_dense_backward.default", "each row's gradients added up over the bags that it is in")
def embedding_bag_dense_backward(
    a: Algebra[V],
    grad: V,
    indices: V,
    offset2bag: V,
    bag_size: V,
    maximum_indices: V,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: V | None,
    padding_idx: int = -1,
) -> V:
    """[b,d] gives [num_weights,d]. A row of a mean gets its share, a row of a maximum all of it.

    Not by frequency: PyTorch's kernel for CPUs divides by that of another row.
    """
    _check(grad, indices, mode, per_sample_weights)
    if scale_grad_by_freq:
        raise MalformedError("gradients of bags divided by the frequency of a row: kernels disagree on which one")
    if num_weights < 0 or offset2bag.shape != indices.shape:
        raise MalformedError(f"{num_weights} rows, and the bags of {list(offset2bag.shape)} indices")
    table = a.full((num_weights, grad.shape[1]), 0, grad.dtype)
    if mode == MAX:
        if maximum_indices.shape != grad.shape or bag_size.shape != grad.shape[:1]:
            raise MalformedError(f"maxima of {list(maximum_indices.shape)} for gradients {list(grad.shape)}")
        columns = a.iota(grad.shape, 1, maximum_indices.dtype)
        filled = a.reshape(a.compare(bag_size, 0, "ne"), (*bag_size.shape, 1))
        return a.scatter(table, [maximum_indices, columns], 0, a.where(filled, grad, 0), add=True)
    updates = a.take(grad, [offset2bag], 0)
    column = (*indices.shape, 1)
    if per_sample_weights is not None:
        updates = a.mul(updates, a.reshape(per_sample_weights, column))
    if mode == MEAN:
        if bag_size.shape != grad.shape[:1]:
            raise MalformedError(f"sizes of {list(bag_size.shape)} bags for gradients {list(grad.shape)}")
        updates = a.div(updates, _divisor(a, a.take(bag_size, [offset2bag], 0), grad.dtype))
    kept = a.reshape(a.compare(indices, padding_idx, "ne"), column)
    return a.scatter(table, [indices], 0, a.where(kept, updates, 0), add=True)


@FAMILY.composite("_embedding_bag_backward.default", "each row's gradients added up over the bags that it is in")
def embedding_bag_backward(
    a: Algebra[V],
    grad: V,
    indices: V,
    offsets: V,
    offset2bag: V,
    bag_size: V,
    maximum_indices: V,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: V | None,
    padding_idx: int = -1,
) -> V:
    """As `embedding_bag_dense_backward`, from the offsets where `offset2bag` is empty."""
    if sparse:
        raise MalformedError("the gradient of a table is asked for as a sparse tensor")
    check_rank(indices, 1)
    check_rank(offsets, 1)
    place = _bag_of(a, indices, offsets) if offset2bag.shape == (0,) else offset2bag
    sizes = (bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    return embedding_bag_dense_backward(a, grad, indices, place, *sizes)


@FAMILY.composite("_embedding_bag_per_sample_weights_backward.default", "the gradient of the factor of each index")
def embedding_bag_per_sample_weights_backward(
    a: Algebra[V], grad: V, weight: V, indices: V, offsets: V, offset2bag: V, mode: int, padding_idx: int = -1
) -> V:
    """[b,d], [r,d] and [n] give [n]: the gradient of its bag times its row; 0 for padding."""
    _check(grad, indices, mode, None)
    _check(weight, indices, mode, None)
    if mode != SUM or offset2bag.shape not in {(0,), indices.shape}:
        raise MalformedError(f"factors in mode {mode}, and the bags of {list(offset2bag.shape)} indices")
    place = offset2bag if offset2bag.shape == indices.shape else _bag_of(a, indices, offsets)
    products = a.dot(a.wide(a.take(grad, [place], 0)), a.wide(a.take(weight, [indices], 0)), ((1,), (1,)), ((0,), (0,)))
    return a.where(a.compare(indices, padding_idx, "ne"), a.cast(products, grad.dtype), 0)


# ---- bags


def _bag_of(a: Algebra[V], indices: V, offsets: V) -> V:
    """The bag of each place: how many offsets are not behind it, without the first."""
    begun = a.compare(a.reshape(offsets, (*offsets.shape, 1)), a.iota((1, *indices.shape), 1, offsets.dtype), "le")
    return a.sub(a.sum(a.cast(begun, offsets.dtype), (0,)), 1)


def _added(a: Algebra[V], x: V, places: V, updates: V) -> V:
    """`x` with `updates` added at `places`; what lies behind it is dropped."""
    behind = a.full((1, *x.shape[1:]), 0, x.dtype)
    sums = a.scatter(a.concat([x, behind], 0), [places], 0, updates, add=True)
    return a.slice(sums, (0,) * len(x.shape), x.shape, (1,) * len(x.shape))


def _greatest(a: Algebra[V], rows: V, indices: V, members: V) -> tuple[V, V]:
    """The maxima over each bag, and the index that each comes from: the first one; zeros for a bag without any."""
    bags, count, width = *members.shape, rows.shape[1]
    if count == 0:
        return a.full((bags, width), 0, rows.dtype), a.full((bags, width), 0, indices.dtype)
    inside = a.reshape(members, (bags, count, 1))
    seen = a.where(inside, a.reshape(rows, (1, count, width)), -math.inf)
    best, filled = a.max(seen, (1,)), a.max(inside, (1,))
    first = a.argmax(a.cast(inside, "F32"), 1)
    where = a.where(a.compare(best, -math.inf, "eq"), first, a.argmax(seen, 1))
    return a.where(filled, best, 0), a.where(filled, a.take(indices, [where], 0), 0)


def _divisor(a: Algebra[V], counts: V, dtype: str) -> V:
    """Counts as a column of numbers that are at least 1."""
    return a.cast(a.reshape(a.maximum(counts, 1), (*counts.shape, 1)), dtype)


def _check(table: Typed, indices: Typed, mode: int, factors: Typed | None) -> None:
    check_rank(table, 2)
    check_rank(indices, 1)
    if indices.dtype not in {"I64", "I32"} or table.dtype not in FLOATS or mode not in {SUM, MEAN, MAX}:
        raise MalformedError(f"bags of {table.dtype} rows by {indices.dtype} indices in mode {mode}")
    if factors is not None and (mode != SUM or factors.shape != indices.shape or factors.dtype != table.dtype):
        raise MalformedError(f"factors {factors.dtype}{list(factors.shape)} of {indices.shape[0]} indices, mode {mode}")
