"""Rows of a table by index, and the gradient of the table."""

from __future__ import annotations

from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, V
from tallystick.operators.aten.contraction import check_rank
from tallystick.operators.definition import Exactness, Family

FAMILY: Final = Family()


@FAMILY.operator(
    "aten.embedding.default",
    "Tensor weight, Tensor indices, int padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False",
    "rows of a table",
    Exactness.MOVES,
)
def embedding(a: Algebra[V], weight: V, indices: V, padding_idx: int, scale_grad_by_freq: bool, sparse: bool) -> V:
    """[n,d] and indices […] give […,d]; the other attributes matter to the gradient alone."""
    check_rank(weight, 2)
    return a.take(weight, [indices], 0)


@FAMILY.operator(
    "aten.embedding_dense_backward.default",
    "Tensor grad_output, Tensor indices, int num_weights, int padding_idx, bool scale_grad_by_freq",
    "each row's gradients added up",
    Exactness.ACCUMULATES,
)
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
