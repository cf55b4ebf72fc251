"""Example calls of the operators that create, move, choose and order elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.programs.operators.examples import Bf16, Call, call

Array = npt.NDArray[Any]
INF = float("inf")


def floats(*shape: int, seed: int = 0) -> Array:
    """Normally distributed F32, the same at every call."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def below(side: int, *shape: int) -> Array:
    """Uniform I64 in 0 … side − 1."""
    return np.random.default_rng([side, *shape]).integers(0, side, shape)


def order(side: int, *shape: int) -> Array:
    """Different I64 in 0 … side − 1 along the first axis."""
    return np.random.default_rng([9, side]).permutation(side)[: shape[0]].reshape(
        -1, *[1] * (len(shape) - 1)
    ) + np.zeros(shape, np.int64)


X = floats(2, 3, 4)
M = floats(4, 4, seed=1)
NARROW = Bf16(X)
NUMBER = np.array(1.5, np.float32)
COUNTS = np.arange(24).reshape(2, 3, 4)
TRUTHS = X > 0
EMPTY = np.zeros((0, 3), np.float32)
EDGES = np.array([0.0, -0.0, 2.5, -2.5, 3e38, INF, -INF, float("nan"), 1e-40], np.float32)


# ---- creation


def creations() -> Iterator[Call]:
    for number in (1, 2.5, True, -INF):
        yield call("aten.full.default", size=(2, 3), fill_value=number)
    yield call("aten.full.default", size=(), fill_value=7, dtype="BF16")
    for name in ("zeros.default", "ones.default", "empty.memory_format"):
        yield call(f"aten.{name}", size=(2, 0, 3))
        yield call(f"aten.{name}", size=(4,), dtype="BOOL")
    for name in ("zeros_like", "ones_like", "empty_like"):
        yield call(f"aten.{name}.default", self=NARROW)
        yield call(f"aten.{name}.default", self=X, dtype="I32")
    yield call("aten.full_like.default", self=X, fill_value=0.1)
    yield call("aten.full_like.default", self=COUNTS, fill_value=3, dtype="F16")
    for name in ("new_zeros", "new_ones", "new_empty"):
        yield call(f"aten.{name}.default", self=NARROW, size=(5,))
        yield call(f"aten.{name}.default", self=X, size=(), dtype="U8")
    yield call("aten.new_empty_strided.default", self=X, size=(2, 3), stride=(1, 2))
    yield call("aten.new_empty_strided.default", self=NARROW, size=(2, 1, 3), stride=(3, 9, 1), dtype="I32")
    yield call("aten.new_empty_strided.default", self=X, size=(0, 3), stride=(3, 1))
    yield call("aten.new_full.default", self=X, size=(2, 2), fill_value=-INF)
    yield call("aten.fill.Scalar", self=NARROW, value=0.3)
    yield call("aten.fill.Tensor", self=COUNTS, value=NUMBER)
    yield call("aten.fill.Tensor", self=X, value=np.array(3, np.int32))
    yield call("aten.zero.default", self=X)
    yield call("aten.scalar_tensor.default", s=3)
    yield call("aten.scalar_tensor.default", s=-INF, dtype="F64")
    yield call("aten.eye.default", n=3)
    yield call("aten.eye.m", n=2, m=4, dtype="I64")


def counts() -> Iterator[Call]:
    yield call("aten.arange.default", end=5)
    yield call("aten.arange.default", end=0)
    yield call("aten.arange.default", end=5.0)
    yield call("aten.arange.default", end=4.5, dtype="F64")
    yield call("aten.arange.default", end=7, dtype="BF16")
    yield call("aten.arange.start", start=-2, end=3)
    yield call("aten.arange.start", start=0.5, end=3.2)
    yield call("aten.arange.start", start=2, end=9, dtype="I32")
    yield call("aten.arange.start_step", start=10, end=-3, step=-4)
    yield call("aten.arange.start_step", start=0, end=16, step=2, dtype="F32")
    yield call("aten.arange.start_step", start=0.0, end=1.0, step=0.1)
    yield call("aten.linspace.default", start=0, end=1, steps=7)
    yield call("aten.linspace.default", start=-3.0, end=5.5, steps=12, dtype="F64")
    yield call("aten.linspace.default", start=2.0, end=5.5, steps=1)
    yield call("aten.linspace.default", start=2.0, end=5.5, steps=0)


# ---- movement

SAME = (
    "alias",
    "clone",
    "contiguous",
    "detach",
    "lift",
    "lift_fresh",
    "lift_fresh_copy",
    "resolve_conj",
    "resolve_neg",
)


def conversions() -> Iterator[Call]:
    for name in SAME:
        yield call(f"aten.{name}.default", self=NARROW)
    yield call("aten.detach_.default", self=X.copy())
    for dtype in ("F64", "F16", "BF16", "BOOL"):
        yield call("aten._to_copy.default", self=EDGES, dtype=dtype)
    yield call("aten._to_copy.default", self=X, dtype="I32")
    yield call("aten._to_copy.default", self=X)
    yield call("aten._to_copy.default", self=TRUTHS, dtype="I64")
    yield call("aten.to.dtype", self=NARROW, dtype="F32")
    yield call("aten.to.device", self=X, dtype="BF16")
    yield call("aten.to.dtype_layout", self=X)
    yield call("aten.to.dtype_layout", self=X, dtype="F64", copy=True)
    yield call("aten.to.other", self=X, other=NARROW)
    yield call("aten.type_as.default", self=COUNTS, other=NARROW)
    yield call("aten.copy.default", self=NARROW, src=floats(3, 1))
    yield call("aten._assert_tensor_metadata.default", a=X, dtype="F32")
    yield call("aten._assert_tensor_metadata.default", a=NARROW, size=(2, 3, 4), dtype="BF16")


def reshapings() -> Iterator[Call]:
    for name in ("view.default", "_unsafe_view.default"):
        yield call(f"aten.{name}", self=X, size=(6, 4))
        yield call(f"aten.{name}", self=NARROW, size=(2, -1))
        yield call(f"aten.{name}", self=NUMBER, size=(1, -1))
        yield call(f"aten.{name}", self=EMPTY, size=(3, 0))
    yield call("aten.reshape.default", self=X, shape=(-1,))
    yield call("aten.reshape.default", self=floats(1), shape=())
    yield call("aten._reshape_alias.default", self=X, size=(3, 8), stride=(8, 1))
    yield call("aten.view_as.default", self=X, other=floats(8, 3))
    yield call("aten.reshape_as.default", self=X, other=floats(4, 6))
    yield call("aten.flatten.using_ints", self=X)
    yield call("aten.flatten.using_ints", self=X, start_dim=1)
    yield call("aten.flatten.using_ints", self=NUMBER)
    yield call("aten.unflatten.int", self=X, dim=-1, sizes=(2, -1))
    for dim in (0, 2, -1, -4):
        yield call("aten.unsqueeze.default", self=X, dim=dim)
    yield call("aten.squeeze.default", self=floats(1, 3, 1))
    yield call("aten.squeeze.dim", self=floats(1, 3, 1), dim=-1)
    yield call("aten.squeeze.dim", self=floats(1, 3, 1), dim=1)
    yield call("aten.squeeze.dim", self=NUMBER, dim=0)
    yield call("aten.squeeze.dims", self=floats(1, 3, 1), dim=(0, 1, 2))
    yield call("aten.expand.default", self=floats(1, 3, 1), size=(2, -1, 4))
    yield call("aten.expand.default", self=floats(3, 1), size=(2, 3, 5))
    yield call("aten.expand.default", self=NUMBER, size=())
    yield call("aten.expand_as.default", self=floats(3, 1), other=X)
    yield call("aten.broadcast_to.default", self=floats(3, 1), size=(2, 3, 5))


def reorderings() -> Iterator[Call]:
    yield call("aten.permute.default", self=X, dims=(2, 0, -2))
    yield call("aten.permute.default", self=NUMBER, dims=())
    yield call("aten.transpose.int", self=NARROW, dim0=0, dim1=-1)
    yield call("aten.transpose.int", self=NUMBER, dim0=0, dim1=-1)
    yield call("aten.swapaxes.default", self=X, axis0=1, axis1=2)
    for operand in (M, floats(3), NUMBER):
        yield call("aten.t.default", self=operand)
    yield call("aten.numpy_T.default", self=M)
    yield call("aten.mT.default", self=X)
    yield call("aten.movedim.int", self=X, source=0, destination=-1)
    yield call("aten.movedim.intlist", self=X, source=(2, 0), destination=(0, 1))
    yield call("aten.flip.default", self=X, dims=(0, -1))
    yield call("aten.flip.default", self=X, dims=())


# ---- parts, joined and padded


def parts() -> Iterator[Call]:
    for start, end, step in ((None, None, 1), (1, 100, 2), (-2, -1, 1), (3, 1, 1), (-100, 3, 1)):
        yield call("aten.slice.Tensor", self=X, dim=-1, start=start, end=end, step=step)
    yield call("aten.slice.Tensor", self=NARROW, start=0, end=2**53 - 1)
    yield call("aten.narrow.default", self=X, dim=2, start=-3, length=2)
    yield call("aten.select.int", self=X, dim=1, index=-1)
    yield call("aten.select.int", self=floats(3), dim=0, index=2)
    for name in ("split", "unsafe_split"):
        yield call(f"aten.{name}.Tensor", self=X, split_size=3, dim=-1)
        yield call(f"aten.{name}.Tensor", self=EMPTY, split_size=0)
        yield call(f"aten.{name}_with_sizes.default", self=X, split_sizes=(1, 0, 2), dim=1)
    yield call("aten.split.sizes", self=X, split_size=(1, 3), dim=2)
    for name in ("chunk", "unsafe_chunk"):
        yield call(f"aten.{name}.default", self=X, chunks=3, dim=2)
        yield call(f"aten.{name}.default", self=EMPTY, chunks=3)
    yield call("aten.unbind.int", self=X, dim=-2)
    yield call("aten.unfold.default", self=X, dimension=2, size=2, step=1)
    yield call("aten.unfold.default", self=floats(2, 9, 3), dimension=1, size=3, step=2)


def joinings() -> Iterator[Call]:
    yield call("aten.cat.default", tensors=(X, floats(2, 3, 1)), dim=-1)
    yield call("aten.cat.default", tensors=(X, NARROW))
    yield call("aten.cat.default", tensors=(np.zeros(0, np.float32), X), dim=2)
    yield call("aten.cat.default", tensors=(COUNTS, TRUTHS))
    yield call("aten.stack.default", tensors=(X, X, X), dim=-1)
    yield call("aten.stack.default", tensors=(NUMBER, NUMBER))
    yield call("aten.hstack.default", tensors=(X, X))
    yield call("aten.hstack.default", tensors=(NUMBER, floats(3)))
    yield call("aten.vstack.default", tensors=(floats(3), M[:, :3]))
    yield call("aten.repeat.default", self=X, repeats=(2, 1, 1, 3))
    yield call("aten.repeat.default", self=X, repeats=(0, 1, 1))
    yield call("aten.tile.default", self=X, dims=(2,))
    yield call("aten.tile.default", self=floats(3), dims=(2, 2))
    yield call("aten.repeat_interleave.self_int", self=X, repeats=2, dim=1)
    yield call("aten.repeat_interleave.self_int", self=X, repeats=3)
    yield call("aten.repeat_interleave.self_int", self=X, repeats=2, dim=0, output_size=4)
    yield call("aten.roll.default", self=X, shifts=(5,))
    yield call("aten.roll.default", self=X, shifts=(1, -1), dims=(0, -1))
    yield call("aten.meshgrid.default", tensors=(floats(2), floats(3)))
    yield call("aten.meshgrid.indexing", tensors=(floats(2), floats(3), floats(4)), indexing="xy")
    yield call("aten.meshgrid.indexing", tensors=(floats(2), NUMBER), indexing="ij")


def paddings() -> Iterator[Call]:
    yield call("aten.constant_pad_nd.default", self=X, pad=(1, 2))
    yield call("aten.constant_pad_nd.default", self=NARROW, pad=(-1, 2, 0, -2), value=-INF)
    yield call("aten.constant_pad_nd.default", self=COUNTS, pad=(1, 0, 0, 0, 2, 1), value=3)
    yield call("aten.pad.default", self=X, pad=(1, 1))
    yield call("aten.pad.default", self=X, pad=(1, 1), mode="constant", value=0.5)
    for mode in ("reflect", "replicate", "circular"):
        yield call("aten.pad.default", self=X, pad=(3, 2), mode=mode)
        yield call("aten.pad.default", self=floats(1, 2, 3, 4), pad=(1, 0, 2, 1), mode=mode)


def gradients_of_parts() -> Iterator[Call]:
    sizes = {"input_sizes": (2, 3, 4)}
    yield call("aten.slice_backward.default", grad_output=X[..., 1:4:2], **sizes, dim=2, start=1, end=9, step=2)
    yield call(
        "aten.slice_backward.default", grad_output=Bf16(X[:, -1:]), **sizes, dim=1, start=-1, end=2**53 - 1, step=1
    )
    yield call("aten.slice_backward.default", grad_output=X[:, :0], **sizes, dim=1, start=2, end=1, step=1)
    yield call("aten.select_backward.default", grad_output=X[:, 1], **sizes, dim=1, index=-2)
    yield call("aten.slice_scatter.default", self=X, src=floats(2, 3, 2), dim=2, start=1, end=4, step=2)
    yield call("aten.slice_scatter.default", self=X, src=floats(2, 1, 4), dim=1, start=1, end=2)
    yield call("aten.slice_scatter.default", self=X, src=X)
    yield call("aten.select_scatter.default", self=X, src=floats(2, 3), dim=2, index=-1)
    yield call("aten.unfold_backward.default", grad_in=floats(2, 3, 3, 2), **sizes, dim=2, size=2, step=1)
    yield call("aten.unfold_backward.default", grad_in=floats(4, 3, 3), input_sizes=(9, 3), dim=0, size=3, step=2)


# ---- indices


def gathers() -> Iterator[Call]:
    yield call("aten.gather.default", self=X, dim=2, index=below(4, 2, 2, 5))
    yield call("aten.gather.default", self=NARROW, dim=0, index=below(2, 1, 3, 4))
    yield call("aten.gather.default", self=NUMBER, dim=0, index=np.array(0))
    yield call("aten.gather.default", self=floats(4), dim=0, index=below(4, 7))
    yield call("aten.take_along_dim.default", self=X, indices=below(4, 2, 1, 4), dim=-1)
    yield call("aten.take_along_dim.default", self=floats(1, 3, 4), indices=below(3, 2, 3, 4), dim=1)
    yield call("aten.take_along_dim.default", self=X, indices=below(24, 5))
    yield call("aten.index_select.default", self=X, dim=1, index=below(3, 5))
    yield call("aten.index_select.default", self=X, dim=-1, index=np.array(2, np.int32))
    yield call("aten.index_select.default", self=NUMBER, dim=0, index=np.array([0]))
    yield call("aten.index.Tensor", self=X, indices=(below(2, 5),))
    yield call("aten.index.Tensor", self=X, indices=(None, below(3, 5, 1), below(4, 6)))
    yield call("aten.index.Tensor", self=X, indices=(below(2, 5), None, below(4, 5) - 4))
    yield call("aten.index.Tensor", self=NARROW, indices=(None, None, np.array(1)))
    yield call("aten.one_hot.default", self=below(4, 2, 3), num_classes=5)
    yield call("aten.diagonal.default", self=X, offset=1, dim1=-1, dim2=0)
    yield call("aten.diagonal.default", self=M)
    yield call("aten.diagonal.default", self=M, offset=-9)


def scatters() -> Iterator[Call]:
    yield call("aten.scatter.src", self=X, dim=2, index=order(4, 3, 2, 2).transpose(1, 2, 0), src=floats(3, 3, 4))
    yield call("aten.scatter.src", self=NUMBER, dim=0, index=np.array(0), src=np.array(2.0, np.float32))
    yield call("aten.scatter.value", self=X, dim=1, index=below(3, 2, 1, 4), value=1.5)
    yield call("aten.scatter.value", self=COUNTS, dim=0, index=below(2, 0, 3, 4), value=1)
    yield call("aten.scatter_add.default", self=X, dim=1, index=below(3, 2, 6, 4), src=floats(2, 6, 4))
    yield call("aten.index_add.default", self=X, dim=1, index=below(3, 5), source=floats(2, 5, 4))
    yield call("aten.index_add.default", self=X, dim=0, index=below(2, 3), source=floats(3, 3, 4), alpha=0.5)
    yield call("aten.index_copy.default", self=X, dim=2, index=order(4, 3), source=floats(2, 3, 3))
    yield call("aten.index_fill.int_Scalar", self=X, dim=2, index=below(4, 2), value=7)
    yield call("aten.index_fill.int_Tensor", self=X, dim=0, index=np.array(1), value=NUMBER)
    yield call("aten.index_put.default", self=X, indices=(None, order(3, 2)), values=floats(2, 1, 4))
    yield call("aten.index_put.default", self=X, indices=(order(2, 2), None, order(4, 2)), values=floats(2, 3))
    yield call(
        "aten.index_put.default", self=X, indices=(below(2, 5), None, below(4, 5)), values=floats(5, 3), accumulate=True
    )
    yield call("aten.index_put.default", self=X, indices=(below(2, 5),), values=NUMBER, accumulate=True)
    yield call(
        "aten.diagonal_backward.default", grad_output=floats(3, 1), input_sizes=(2, 3, 4), offset=1, dim1=2, dim2=0
    )


# ---- order


def orders() -> Iterator[Call]:
    for descending in (False, True):
        yield call("aten.sort.default", self=X, dim=1, descending=descending)
        yield call("aten.sort.stable", self=below(3, 4, 5), stable=True, descending=descending)
        yield call("aten.argsort.stable", self=TRUTHS, stable=True, descending=descending)
    yield call("aten.sort.default", self=NUMBER)
    yield call("aten.argsort.default", self=X, dim=0)
    yield call("aten.topk.default", self=X, k=2)
    yield call("aten.topk.default", self=X, k=3, dim=1, largest=False)
    yield call("aten.topk.default", self=NUMBER, k=1)
    yield call("aten.topk.default", self=X, k=0, dim=0)
    for name in ("tril", "triu"):
        for diagonal in (0, 1, -2, 99):
            yield call(f"aten.{name}.default", self=X, diagonal=diagonal)
        yield call(f"aten.{name}.default", self=TRUTHS)
    yield call("aten.diff.default", self=X)
    yield call("aten.diff.default", self=NARROW, n=2, dim=0)
    yield call("aten.diff.default", self=TRUTHS, dim=1)
    yield call("aten.diff.default", self=COUNTS, n=2, dim=-1, prepend=COUNTS[..., :1], append=COUNTS)


# ---- what does not fit


def malformed_creations() -> Iterator[Call]:
    yield call("aten.full.default", size=(-1,), fill_value=0)
    yield call("aten.full.default", size=(2,), fill_value=INF, dtype="I64")
    yield call("aten.full.default", size=(1 << 30, 1 << 30), fill_value=0)
    yield call("aten.full.default", size=(1,) * 65, fill_value=0)
    for name in ("zeros.default", "ones.default", "empty.memory_format"):
        yield call(f"aten.{name}", size=(-2, 3))
        yield call(f"aten.{name}", size=(2, 3), dtype="F8_E4M3")
    for name in ("zeros_like", "ones_like", "empty_like"):
        yield call(f"aten.{name}.default", self=X, dtype="F8_E4M3")
    yield call("aten.full_like.default", self=TRUTHS, fill_value=2)
    for name in ("new_zeros", "new_ones", "new_empty"):
        yield call(f"aten.{name}.default", self=X, size=(-1,))
    for stride in ((3,), (4, 1), (1, 1), (0, 1), (-1, 1), (1 << 40, 1)):
        yield call("aten.new_empty_strided.default", self=X, size=(2, 3), stride=stride)
    yield call("aten.new_full.default", self=COUNTS, size=(2,), fill_value=0.5)
    yield call("aten.fill.Scalar", self=COUNTS, value=0.5)
    yield call("aten.fill.Tensor", self=X, value=floats(2))
    yield call("aten.zero.default", self=np.zeros(2, np.uint16))
    yield call("aten.scalar_tensor.default", s=300, dtype="U8")
    yield call("aten.eye.default", n=-1)
    yield call("aten.eye.m", n=3, m=-1)
    yield call("aten.arange.default", end=-1)
    yield call("aten.arange.default", end=INF)
    yield call("aten.arange.default", end=1 << 50)
    yield call("aten.arange.start", start=3, end=1)
    yield call("aten.arange.start", start=0.5, end=4, dtype="I64")
    yield call("aten.arange.start_step", start=0, end=3, step=0)
    yield call("aten.arange.start_step", start=0, end=200, step=1, dtype="I8")
    yield call("aten.arange.start_step", start=-1e308, end=1e308, step=1e-300)
    yield call("aten.linspace.default", start=0, end=1, steps=-1)
    yield call("aten.linspace.default", start=0, end=1, steps=3, dtype="I64")
    yield call("aten.linspace.default", start=0, end=INF, steps=3)


def malformed_movements() -> Iterator[Call]:
    yield call("aten._to_copy.default", self=X, dtype="U16")
    for name in ("to.dtype", "to.device", "to.dtype_layout"):
        yield call(f"aten.{name}", self=X, dtype="F8_E5M2")
    yield call("aten.to.other", self=X, other=np.zeros(2, np.uint16))
    yield call("aten.type_as.default", self=X, other=np.zeros(2, np.uint16))
    yield call("aten.copy.default", self=floats(3), src=X)
    yield call("aten._assert_tensor_metadata.default", a=X, dtype="F64")
    yield call("aten._assert_tensor_metadata.default", a=X, size=(2, 3))
    for name in ("view.default", "_unsafe_view.default"):
        for size in ((5, 5), (-1, -1), (-1, 5), (-2, -12), (-1, 0)):
            yield call(f"aten.{name}", self=X, size=size)
    yield call("aten.reshape.default", self=X, shape=(25,))
    yield call("aten._reshape_alias.default", self=X, size=(3, 9), stride=(9, 1))
    yield call("aten.view_as.default", self=X, other=floats(5))
    yield call("aten.reshape_as.default", self=X, other=floats(5))
    yield call("aten.flatten.using_ints", self=X, start_dim=2, end_dim=1)
    yield call("aten.flatten.using_ints", self=X, start_dim=3)
    yield call("aten.unflatten.int", self=X, dim=2, sizes=(3, -1))
    yield call("aten.unflatten.int", self=NUMBER, dim=0, sizes=(1,))
    yield call("aten.unsqueeze.default", self=X, dim=4)
    yield call("aten.squeeze.default", self=np.zeros((1, 2), np.uint16))
    yield call("aten.squeeze.dim", self=X, dim=3)
    yield call("aten.squeeze.dims", self=floats(1, 1), dim=(0, 0))
    for size in ((2, 3, 5), (3, 4), (-1, 2, 3, 4), (2, -2, 4)):
        yield call("aten.expand.default", self=X, size=size)
    yield call("aten.expand_as.default", self=X, other=M)
    yield call("aten.broadcast_to.default", self=X, size=(3, 4))
    yield call("aten.permute.default", self=X, dims=(0, 1, 1))
    yield call("aten.permute.default", self=X, dims=(0, 1))
    yield call("aten.transpose.int", self=X, dim0=0, dim1=3)
    yield call("aten.swapaxes.default", self=X, axis0=-4, axis1=0)
    yield call("aten.t.default", self=X)
    yield call("aten.numpy_T.default", self=np.zeros(2, np.uint16))
    yield call("aten.mT.default", self=floats(3))
    yield call("aten.movedim.int", self=X, source=3, destination=0)
    yield call("aten.movedim.intlist", self=X, source=(0, 1), destination=(1, 1))
    yield call("aten.flip.default", self=X, dims=(0, 0))


def malformed_parts() -> Iterator[Call]:
    yield call("aten.slice.Tensor", self=X, dim=3)
    yield call("aten.slice.Tensor", self=X, step=0)
    yield call("aten.slice.Tensor", self=NUMBER)
    yield call("aten.narrow.default", self=X, dim=0, start=1, length=2)
    yield call("aten.narrow.default", self=X, dim=0, start=1, length=-1)
    yield call("aten.select.int", self=X, dim=0, index=2)
    yield call("aten.select.int", self=NUMBER, dim=0, index=0)
    for name in ("split", "unsafe_split"):
        yield call(f"aten.{name}.Tensor", self=X, split_size=0)
        yield call(f"aten.{name}.Tensor", self=X, split_size=-1)
        yield call(f"aten.{name}_with_sizes.default", self=X, split_sizes=(1, 1), dim=1)
    yield call("aten.split.sizes", self=X, split_size=(4, -1), dim=1)
    for name in ("chunk", "unsafe_chunk"):
        yield call(f"aten.{name}.default", self=X, chunks=0)
        yield call(f"aten.{name}.default", self=EMPTY, chunks=1 << 40)
    yield call("aten.unbind.int", self=NUMBER)
    yield call("aten.unfold.default", self=X, dimension=2, size=5, step=1)
    yield call("aten.unfold.default", self=X, dimension=2, size=2, step=0)
    yield call("aten.cat.default", tensors=(X, M))
    yield call("aten.cat.default", tensors=())
    yield call("aten.stack.default", tensors=(X, M))
    yield call("aten.stack.default", tensors=(X,), dim=4)
    yield call("aten.hstack.default", tensors=())
    yield call("aten.vstack.default", tensors=(X, M))
    yield call("aten.repeat.default", self=X, repeats=(1, 2))
    yield call("aten.repeat.default", self=X, repeats=(1, 2, -1))
    yield call("aten.tile.default", self=X, dims=(-1,))
    yield call("aten.repeat_interleave.self_int", self=X, repeats=-1, dim=0)
    yield call("aten.repeat_interleave.self_int", self=X, repeats=2, dim=0, output_size=5)
    yield call("aten.roll.default", self=X, shifts=(1, 2))
    yield call("aten.roll.default", self=X, shifts=(1,), dims=(3,))
    yield call("aten.meshgrid.default", tensors=(X,))
    yield call("aten.meshgrid.indexing", tensors=(floats(2),), indexing="yx")
    yield call("aten.constant_pad_nd.default", self=X, pad=(1,))
    yield call("aten.constant_pad_nd.default", self=X, pad=(-3, -2))
    yield call("aten.constant_pad_nd.default", self=COUNTS, pad=(1, 1), value=0.5)
    yield call("aten.pad.default", self=X, pad=(4, 0), mode="reflect")
    yield call("aten.pad.default", self=X, pad=(5, 0), mode="circular")
    yield call("aten.pad.default", self=X, pad=(1, 0), mode="mirror")


def malformed_gradients_of_parts() -> Iterator[Call]:
    sizes = {"input_sizes": (2, 3, 4)}
    yield call("aten.slice_backward.default", grad_output=X, **sizes, dim=2, start=1, end=3, step=1)
    yield call("aten.slice_backward.default", grad_output=X, **sizes, dim=2, start=0, end=4, step=0)
    yield call("aten.slice_backward.default", grad_output=X, input_sizes=(), dim=0, start=0, end=4, step=1)
    yield call("aten.select_backward.default", grad_output=X[:, 1], **sizes, dim=1, index=3)
    yield call("aten.select_backward.default", grad_output=X, **sizes, dim=1, index=0)
    yield call("aten.slice_scatter.default", self=X, src=floats(2, 3, 3), dim=2, start=1, end=3)
    yield call("aten.slice_scatter.default", self=X, src=NARROW)
    yield call("aten.select_scatter.default", self=X, src=floats(2, 4), dim=2, index=0)
    yield call("aten.unfold_backward.default", grad_in=floats(2, 3, 4, 2), **sizes, dim=2, size=2, step=1)
    yield call("aten.unfold_backward.default", grad_in=floats(2, 3, 3, 2), **sizes, dim=2, size=3, step=1)


def malformed_indices() -> Iterator[Call]:
    yield call("aten.gather.default", self=X, dim=2, index=X)
    yield call("aten.gather.default", self=X, dim=2, index=below(4, 3, 3, 4))
    yield call("aten.gather.default", self=X, dim=2, index=below(4, 4))
    yield call("aten.take_along_dim.default", self=X, indices=below(4, 3, 1, 4), dim=-1)
    yield call("aten.take_along_dim.default", self=X, indices=TRUTHS)
    yield call("aten.index_select.default", self=X, dim=1, index=below(3, 5, 1))
    yield call("aten.index_select.default", self=EMPTY, dim=0, index=below(3, 5))
    yield call("aten.index.Tensor", self=X, indices=(TRUTHS,))
    yield call("aten.index.Tensor", self=X, indices=(TRUTHS.astype(np.uint8),))
    yield call("aten.index.Tensor", self=X, indices=(None, None))
    yield call("aten.index.Tensor", self=X, indices=(below(2, 2), below(3, 3)))
    yield call("aten.index.Tensor", self=X, indices=(below(2, 2),) * 4)
    yield call("aten.one_hot.default", self=below(4, 3))
    yield call("aten.one_hot.default", self=X, num_classes=3)
    yield call("aten.diagonal.default", self=X, dim1=1, dim2=-2)
    yield call("aten.diagonal.default", self=floats(3))
    yield call("aten.scatter.src", self=X, dim=2, index=below(4, 2, 3, 2), src=floats(2, 3, 1))
    yield call("aten.scatter.src", self=X, dim=2, index=below(4, 2, 3, 2), src=NARROW)
    yield call("aten.scatter.value", self=X, dim=1, index=below(3, 3, 1, 4), value=1.5)
    yield call("aten.scatter.value", self=COUNTS, dim=1, index=below(3, 2, 1, 4), value=1.5)
    yield call("aten.scatter_add.default", self=TRUTHS, dim=1, index=below(3, 2, 3, 4), src=TRUTHS)
    yield call("aten.index_add.default", self=X, dim=1, index=below(3, 5), source=floats(2, 4, 4))
    yield call("aten.index_copy.default", self=X, dim=2, index=below(4, 3), source=floats(2, 3, 4))
    yield call("aten.index_fill.int_Scalar", self=COUNTS, dim=2, index=below(4, 2), value=0.5)
    yield call("aten.index_fill.int_Tensor", self=X, dim=0, index=np.array(1), value=floats(2))
    yield call("aten.index_put.default", self=X, indices=(TRUTHS,), values=NUMBER)
    yield call("aten.index_put.default", self=X, indices=(below(2, 5),), values=floats(4, 3, 4))
    yield call("aten.index_put.default", self=X, indices=(below(2, 5),), values=np.array(1.0))
    yield call(
        "aten.diagonal_backward.default", grad_output=floats(3, 3), input_sizes=(2, 3, 4), offset=1, dim1=2, dim2=0
    )


def malformed_orders() -> Iterator[Call]:
    yield call("aten.sort.default", self=X, dim=3)
    yield call("aten.sort.stable", self=X, stable=True, dim=-4)
    yield call("aten.argsort.default", self=X, dim=3)
    yield call("aten.argsort.stable", self=X, stable=True, dim=3)
    yield call("aten.topk.default", self=X, k=5)
    yield call("aten.topk.default", self=X, k=-1)
    for name in ("tril", "triu"):
        yield call(f"aten.{name}.default", self=floats(3))
    yield call("aten.diff.default", self=X, n=-1)
    yield call("aten.diff.default", self=NUMBER)
    yield call("aten.diff.default", self=X, prepend=M)


def by_operator(*groups: Iterator[Call]) -> dict[str, list[Call]]:
    """The calls of each operator."""
    found: dict[str, list[Call]] = {}
    for group in groups:
        for each in group:
            found.setdefault(each.operator, []).append(each)
    return found


EXAMPLES = by_operator(
    *(creations(), counts(), conversions(), reshapings(), reorderings(), parts(), joinings(), paddings()),
    *(gradients_of_parts(), gathers(), scatters(), orders()),
)
MALFORMED = by_operator(
    *(malformed_creations(), malformed_movements(), malformed_parts(), malformed_gradients_of_parts()),
    *(malformed_indices(), malformed_orders()),
)
