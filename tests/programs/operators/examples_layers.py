"""Example calls of contractions, convolutions, pooling, normalization, attention, embedding and resampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.programs.operators.examples import Bf16, Call, call

Array = npt.NDArray[Any]


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Normally distributed F32, the same at every call."""
    return (scale * np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(np.float32)


def narrow(*shape: int, seed: int = 0) -> Bf16:
    """Normally distributed BF16."""
    return Bf16(floats(*shape, seed=seed))


def integers(*shape: int, below: int) -> Array:
    """Uniform I64 in 0 … below − 1."""
    return np.random.default_rng([below, *shape]).integers(0, below, shape)


# ---- contractions


def contractions() -> Iterator[Call]:
    yield call("aten.mm.default", self=floats(3, 5), mat2=floats(5, 4))
    yield call("aten.mm.default", self=narrow(3, 64), mat2=narrow(64, 4))
    yield call("aten.mm.default", self=integers(2, 3, below=9), mat2=integers(3, 2, below=9))
    yield call("aten.bmm.default", self=floats(2, 3, 5), mat2=floats(2, 5, 4))
    yield call("aten.mv.default", self=floats(3, 5), vec=floats(5))
    yield call("aten.dot.default", self=floats(300), tensor=floats(300, seed=1))
    yield call("aten.vdot.default", self=floats(7), other=floats(7, seed=1))
    yield call("aten.addmm.default", self=floats(4), mat1=floats(3, 5), mat2=floats(5, 4))
    yield call("aten.addmm.default", self=floats(3, 4), mat1=floats(3, 5), mat2=floats(5, 4), beta=0.5, alpha=2)
    yield call("aten.addmm.default", self=narrow(3, 4), mat1=narrow(3, 5), mat2=narrow(5, 4))
    yield call("aten.addmv.default", self=floats(3), mat=floats(3, 5), vec=floats(5), beta=2, alpha=0.1)
    yield call("aten.baddbmm.default", self=floats(2, 3, 4), batch1=floats(2, 3, 5), batch2=floats(2, 5, 4), alpha=0.3)
    yield call("aten.baddbmm.default", self=floats(1, 4), batch1=floats(2, 3, 5), batch2=floats(2, 5, 4), beta=0)
    for left, right in MATMUL_SHAPES:
        yield call("aten.matmul.default", self=floats(*left), other=floats(*right, seed=1))
    yield call("aten.linear.default", input=floats(2, 3, 5), weight=floats(4, 5), bias=floats(4))
    yield call("aten.linear.default", input=floats(5), weight=floats(4, 5))
    yield call("aten.linear.default", input=floats(2, 3, 5), weight=floats(5))
    yield call("aten.linear.default", input=narrow(3, 5), weight=narrow(4, 5), bias=narrow(4))


MATMUL_SHAPES = [
    ((5,), (5,)),
    ((3, 5), (5,)),
    ((5,), (5, 4)),
    ((3, 5), (5, 4)),
    ((2, 3, 5), (5, 4)),
    ((2, 3, 5), (5,)),
    ((5,), (2, 5, 4)),
    ((3, 5), (2, 5, 4)),
    ((2, 1, 3, 5), (6, 5, 4)),
    ((2, 6, 3, 5), (2, 6, 5, 4)),
]


# ---- convolutions

GEOMETRY = {
    "stride": (1, 1),
    "padding": (0, 0),
    "dilation": (1, 1),
    "transposed": False,
    "output_padding": (0, 0),
    "groups": 1,
}
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 6, 7), (4, 3, 3, 3), {"padding": (1, 1)}),
    ((2, 4, 6, 7), (6, 2, 3, 2), {"stride": (2, 3), "padding": (1, 0), "groups": 2}),
    ((1, 4, 7, 7), (4, 1, 3, 3), {"dilation": (2, 2), "padding": (2, 2), "groups": 4}),
    ((2, 3, 8), (4, 3, 3), {"stride": (2,), "padding": (1,), "dilation": (1,), "output_padding": (0,)}),
    ((2, 4, 4, 5), (4, 3, 3, 3), {"transposed": True, "stride": (2, 2), "padding": (1, 1), "output_padding": (1, 0)}),
    ((2, 4, 4, 5), (4, 3, 2, 3), {"transposed": True, "groups": 2, "stride": (3, 1), "dilation": (1, 2)}),
    ((1, 2, 3, 4, 4), (3, 2, 2, 2, 2), {"padding": (1, 0, 1)}),
]


def convolutions() -> Iterator[Call]:
    for x, w, geometry in CONVOLUTIONS:
        given = geometry_of(x, geometry)
        yield call("aten.convolution.default", input=floats(*x), weight=floats(*w), bias=None, **given)
        gradient = floats(*convolved_shape(x, w, given), seed=3)
        both = {"input": floats(*x), "weight": floats(*w), "bias_sizes": None, "output_mask": (True, True, True)}
        yield call("aten.convolution_backward.default", grad_output=gradient, **(both | given))
    x, w, geometry = CONVOLUTIONS[0]
    given = geometry_of(x, geometry)
    yield call("aten.convolution.default", input=narrow(*x), weight=narrow(*w), bias=narrow(4), **given)
    gradient = floats(*convolved_shape(x, w, given), seed=3)
    both = {"input": floats(*x), "weight": floats(*w), "bias_sizes": (4,), "output_mask": (False, True, False)}
    yield call("aten.convolution_backward.default", grad_output=gradient, **(both | given))
    yield from named_convolutions()


def named_convolutions() -> Iterator[Call]:
    line, plane = {"input": floats(2, 3, 8), "bias": floats(4)}, {"input": floats(2, 3, 6, 7), "bias": floats(4)}
    yield call("aten.conv1d.default", weight=floats(4, 3, 3), **line, stride=(2,))
    yield call("aten.conv1d.padding", weight=floats(4, 3, 4), **line, padding="same")
    yield call("aten.conv2d.default", weight=floats(4, 3, 3, 3), **plane, padding=(1, 1))
    yield call("aten.conv2d.default", input=floats(3, 6, 7), weight=floats(4, 3, 3, 3))
    yield call("aten.conv2d.padding", weight=floats(4, 3, 3, 2), **plane, padding="same", dilation=(2, 1))
    yield call("aten.conv2d.padding", weight=floats(4, 3, 3, 2), **plane, stride=(2, 2))
    yield call("aten.conv3d.default", input=floats(1, 2, 3, 4, 4), weight=floats(3, 2, 2, 2, 2))
    volume = {"input": floats(1, 2, 3, 4, 4)}
    yield call("aten.conv3d.padding", weight=floats(3, 2, 2, 2, 2), **volume, padding="same")
    yield call("aten.conv_transpose3d.input", weight=floats(2, 3, 2, 2, 2), **volume, stride=(2, 1, 1))
    yield call("aten.conv_transpose1d.default", weight=floats(3, 4, 3), **line, stride=(2,), output_padding=(1,))
    yield call("aten.conv_transpose2d.input", weight=floats(3, 4, 2, 2), **plane, stride=(2, 2))


def geometry_of(x: tuple[int, ...], given: dict[str, Any]) -> dict[str, Any]:
    """All attributes of a convolution, one number per spatial axis."""
    axes = len(x) - 2
    full = {key: value[:1] * axes if isinstance(value, tuple) else value for key, value in GEOMETRY.items()}
    return full | given


def convolved_shape(x: tuple[int, ...], w: tuple[int, ...], given: dict[str, Any]) -> tuple[int, ...]:
    """The shape of a convolution's result (PyTorch, `torch.nn.Conv2d` and `ConvTranspose2d`)."""
    sides = []
    for axis in range(len(x) - 2):
        step, zeros, span = given["stride"][axis], given["padding"][axis], given["dilation"][axis] * (w[axis + 2] - 1)
        if given["transposed"]:
            sides.append((x[axis + 2] - 1) * step - 2 * zeros + span + 1 + given["output_padding"][axis])
        else:
            sides.append((x[axis + 2] + 2 * zeros - span - 1) // step + 1)
    return (x[0], w[1] * given["groups"] if given["transposed"] else w[0], *sides)


# ---- pooling

MAX_POOLS: list[dict[str, Any]] = [
    {"kernel_size": (2, 2), "stride": (2, 2)},
    {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1)},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True},
    {"kernel_size": (2, 2), "stride": (1, 2), "dilation": (2, 3)},
]
MEAN_POOLS: list[dict[str, Any]] = [
    {"kernel_size": (2, 2), "stride": (2, 2)},
    {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1)},
    {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil_mode": True, "count_include_pad": False},
    {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil_mode": True},
    {"kernel_size": (2, 3), "stride": (1, 2), "divisor_override": 5},
]


def pools() -> Iterator[Call]:
    x = floats(2, 3, 7, 8)
    for given in MAX_POOLS:
        full = {"padding": (0, 0), "dilation": (1, 1), "ceil_mode": False} | given
        yield call("aten.max_pool2d.default", self=x, **full)
        yield call("aten.max_pool2d_with_indices.default", self=x, **full)
        where = maximum_places(x, **full)
        gradient = floats(*where.shape, seed=4)
        yield call("aten.max_pool2d_with_indices_backward.default", self=x, **full, grad_output=gradient, indices=where)
    yield call("aten.max_pool2d.default", self=narrow(3, 7, 8), kernel_size=(2,), padding=(1,))
    for given in MEAN_POOLS:
        none: dict[str, Any] = {"padding": (0, 0), "ceil_mode": False, "count_include_pad": True}
        full = none | {"divisor_override": None} | given
        yield call("aten.avg_pool2d.default", self=x, **full)
        shape = (2, 3, *pooled_sides((7, 8), **{"dilation": (1, 1)} | full))
        yield call("aten.avg_pool2d_backward.default", grad_output=floats(*shape, seed=4), self=x, **full)
    for size in [(1, 1), (3, 4), (7, 5), (9, 8)]:
        for name in ("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default"):
            yield call(name, self=x, output_size=size)
        yield call("aten._adaptive_avg_pool2d_backward.default", grad_output=floats(2, 3, *size, seed=4), self=x)
    yield call("aten.avg_pool2d.default", self=narrow(3, 7, 8), kernel_size=(2, 2))


def pooled_sides(
    sides: tuple[int, int],
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    ceil_mode: bool,
    **_: Any,
) -> tuple[int, ...]:
    """How many windows there are along each side."""
    found = []
    for side, kernel, step, zeros, gap in zip(sides, kernel_size, stride, padding, dilation, strict=True):
        starts = range(-zeros, side + zeros, step)
        if ceil_mode:
            reach = side + zeros - gap * (kernel - 1) - 1
            found.append(sum(1 for start in starts if start < side and start < reach + step))
        else:
            found.append(sum(1 for start in starts if start + gap * (kernel - 1) < side + zeros))
    return tuple(found)


def maximum_places(x: Array, **given: Any) -> Array:
    """Where the first maximum of each window is, found element by element."""
    height, width = pooled_sides(x.shape[-2:], **given)
    found = np.zeros((*x.shape[:-2], height, width), np.int64)
    for place in np.ndindex(found.shape):
        found[place] = _first_maximum(x[place[:-2]], place[-2:], **given)
    return found


def _first_maximum(plane: Array, window: tuple[int, ...], **given: Any) -> int:
    best, where = -np.inf, -1
    for offset in np.ndindex(given["kernel_size"]):
        row, column = (
            window[i] * given["stride"][i] - given["padding"][i] + offset[i] * given["dilation"][i] for i in (0, 1)
        )
        inside = 0 <= row < plane.shape[0] and 0 <= column < plane.shape[1]
        if inside and plane[row, column] > best:
            best, where = plane[row, column], row * plane.shape[1] + column
    return where


# ---- normalization


def normalizations() -> Iterator[Call]:
    yield from layer_norms()
    yield from group_norms()
    yield from batch_norms()
    yield from rms_norms()


def layer_norms() -> Iterator[Call]:
    x = floats(3, 4, 6) + np.float32(0.5)
    for shape in ((6,), (4, 6)):
        affine = {"weight": floats(*shape, seed=1), "bias": floats(*shape, seed=2)}
        yield call("aten.layer_norm.default", input=x, normalized_shape=shape, **affine)
        yield call("aten.native_layer_norm.default", input=x, normalized_shape=shape, **affine, eps=1e-5)
        axes = tuple(range(3 - len(shape), 3))
        mean, rstd = moments(x, axes)
        given = {"grad_out": floats(3, 4, 6, seed=3), "input": x, "normalized_shape": shape, "mean": mean, "rstd": rstd}
        for mask in ((True, True, True), (True, False, True)):
            yield call("aten.native_layer_norm_backward.default", **given, **affine, output_mask=mask)
    bare = {"input": x, "normalized_shape": (6,), "weight": None, "bias": None}
    yield call("aten.native_layer_norm.default", **bare, eps=1e-6)
    mean, rstd = moments(x, (2,))
    given = {"grad_out": floats(3, 4, 6, seed=3), "mean": mean, "rstd": rstd, "output_mask": (True, False, False)}
    yield call("aten.native_layer_norm_backward.default", **bare, **given)
    yield call("aten.native_layer_norm.default", **(bare | {"input": narrow(3, 4, 6)}), eps=1e-5)
    yield call("aten.layer_norm.default", **(bare | {"input": narrow(3, 4, 6), "weight": narrow(6), "bias": narrow(6)}))


def group_norms() -> Iterator[Call]:
    x = floats(2, 6, 3, 4) + np.float32(0.5)
    affine = {"weight": floats(6, seed=1), "bias": floats(6, seed=2)}
    sizes = {"N": 2, "C": 6, "HxW": 12}
    for groups in (1, 3, 6):
        yield call("aten.group_norm.default", input=x, num_groups=groups, **affine)
        yield call("aten.native_group_norm.default", input=x, **affine, **sizes, group=groups, eps=1e-5)
        mean, rstd = moments(x.reshape(2, groups, -1), (2,))
        statistics = {"mean": mean.reshape(2, groups), "rstd": rstd.reshape(2, groups), "weight": affine["weight"]}
        given = {"grad_out": floats(2, 6, 3, 4, seed=3), "input": x, **statistics, **sizes, "group": groups}
        yield call("aten.native_group_norm_backward.default", **given, output_mask=(True, True, True))
        yield call("aten.native_group_norm_backward.default", **given, output_mask=(True, False, False))
    bare = {"input": narrow(2, 6, 3, 4), "weight": None, "bias": None}
    yield call("aten.native_group_norm.default", **bare, **sizes, group=2, eps=1e-5)


def batch_norms() -> Iterator[Call]:
    x = floats(4, 3, 5, 5) + np.float32(0.5)
    affine = {"weight": floats(3, seed=1), "bias": floats(3, seed=2)}
    running = {"running_mean": floats(3, seed=3), "running_var": 1 + floats(3, seed=4) ** 2}
    rest = {"momentum": 0.1, "eps": 1e-5}
    for training in (True, False):
        given = {"input": x, **affine, **running, "training": training, **rest}
        yield call("aten.batch_norm.default", **given, cudnn_enabled=False)
    given = {"input": x, **affine, "training": True, **rest}
    yield call("aten.native_batch_norm.default", **given, running_mean=None, running_var=None)
    yield call("aten._native_batch_norm_legit.no_stats", **given)
    yield call("aten._native_batch_norm_legit.default", **given, **running)
    yield call("aten._native_batch_norm_legit_functional.default", **given, **running)
    yield call("aten._native_batch_norm_legit_functional.default", **(given | {"input": x[:, :, 0, 0]}), **running)
    yield call("aten._native_batch_norm_legit_no_training.default", input=x, **affine, **running, **rest)
    mean, invstd = (each.reshape(3) for each in moments(x, (0, 2, 3)))
    saved = {"save_mean": mean, "save_invstd": invstd, "output_mask": (True, True, True)}
    for train in (True, False):
        given = {"grad_out": floats(4, 3, 5, 5, seed=5), "input": x, "weight": affine["weight"], **running}
        yield call("aten.native_batch_norm_backward.default", **given, **saved, train=train, eps=1e-5)
        partly = saved | {"output_mask": (False, True, False)}
        yield call("aten.native_batch_norm_backward.default", **given, **partly, train=train, eps=1e-5)


def rms_norms() -> Iterator[Call]:
    x = floats(3, 4, 6)
    for shape in ((6,), (4, 6)):
        weight = floats(*shape, seed=1)
        for eps in (None, 1e-5):
            yield call("aten.rms_norm.default", input=x, normalized_shape=shape, weight=weight, eps=eps)
            yield call("aten._fused_rms_norm.default", input=x, normalized_shape=shape, weight=weight, eps=eps)
        axes = tuple(range(3 - len(shape), 3))
        rstd = (1 / np.sqrt(np.mean(x.astype(np.float64) ** 2, axes, keepdims=True) + 1e-5)).astype(np.float32)
        given = {"grad_out": floats(3, 4, 6, seed=3), "input": x, "normalized_shape": shape, "rstd": rstd}
        yield call("aten._fused_rms_norm_backward.default", **given, weight=weight, output_mask=(True, True))
        yield call("aten._fused_rms_norm_backward.default", **given, weight=None, output_mask=(True, False))
    yield call("aten.rms_norm.default", input=narrow(3, 6), normalized_shape=(6,), weight=narrow(6))


def moments(x: Array, axes: tuple[int, ...], eps: float = 1e-5) -> tuple[Array, Array]:
    """Mean and 1 / √(variance + eps), as F32."""
    wide = x.astype(np.float64)
    mean = wide.mean(axes, keepdims=True)
    return mean.astype(np.float32), (1 / np.sqrt(wide.var(axes, keepdims=True) + eps)).astype(np.float32)


# ---- attention


def attentions() -> Iterator[Call]:
    q, k, v = floats(2, 4, 5, 8), floats(2, 4, 7, 8, seed=1), floats(2, 4, 7, 8, seed=2)
    names = {"query": q, "key": k, "value": v}
    added = np.where(np.arange(7) < np.arange(2, 7)[:, None], np.float32(0.25), np.float32(-np.inf))
    for given in ({}, {"is_causal": True}, {"attn_mask": added}, {"attn_mask": added == 0.25}, {"scale": 0.7}):
        yield call("aten.scaled_dot_product_attention.default", **names, **given)
    few = {"query": q, "key": k[:, :2], "value": v[:, :2]}
    yield call("aten.scaled_dot_product_attention.default", **few, enable_gqa=True)
    narrower = {"query": narrow(1, 2, 5, 8), "key": narrow(1, 2, 40, 8), "value": narrow(1, 2, 40, 8, seed=1)}
    yield call("aten.scaled_dot_product_attention.default", **narrower)
    yield call("aten._scaled_dot_product_attention_math.default", **names)
    yield call("aten._scaled_dot_product_attention_math.default", **names, attn_mask=added)
    fused: list[dict[str, Any]] = [{}, {"is_causal": True}, {"attn_mask": added}, {"scale": 0.7}]
    for names, given in [*((names, given) for given in fused), *((few, given) for given in fused[:2])]:
        yield call("aten._scaled_dot_product_flash_attention_for_cpu.default", **names, **given)
        out, logsumexp = attended(**names, **given)
        rest: dict[str, Any] = {"dropout_p": 0.0, "is_causal": False, "grad_out": floats(2, 4, 5, 8, seed=3)} | given
        backward = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
        yield call(backward, **names, out=out, logsumexp=logsumexp, **rest)
    yield call("aten._scaled_dot_product_flash_attention_for_cpu.default", **narrower)


def attended(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """The result of attention and the logarithm of its denominators, as F32."""
    k, v = (np.repeat(each, query.shape[1] // each.shape[1], 1).astype(np.float64) for each in (key, value))
    q = query.astype(np.float64)
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    scores = scores if attn_mask is None else scores + attn_mask
    shift = scores.max(-1, keepdims=True)
    weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True)
    return (weights / total @ v).astype(np.float32), (shift + np.log(total))[..., 0].astype(np.float32)


# ---- embedding and resampling


def embeddings() -> Iterator[Call]:
    yield call("aten.embedding.default", weight=floats(7, 4), indices=integers(2, 3, below=7))
    yield call("aten.embedding.default", weight=narrow(7, 4), indices=np.array([6, 0], np.int32), padding_idx=0)
    for padding in (-1, 2):
        for often in (False, True):
            given = {"num_weights": 7, "padding_idx": padding, "scale_grad_by_freq": often}
            indices, gradient = integers(2, 9, below=7), floats(2, 9, 4)
            yield call("aten.embedding_dense_backward.default", grad_output=gradient, indices=indices, **given)


def resamplings() -> Iterator[Call]:
    x = floats(2, 3, 4, 5)
    for size, scales in RESAMPLINGS:
        given = {"scales_h": scales[0], "scales_w": scales[1], "output_size": size}
        yield call("aten.upsample_nearest2d.default", self=x, **given)
        gradient = floats(2, 3, *size, seed=1)
        name = "aten.upsample_nearest2d_backward.default"
        yield call(name, grad_output=gradient, input_size=x.shape, **given)
    yield call("aten.upsample_nearest2d.vec", input=x, output_size=None, scale_factors=(2.0, 2.0))
    yield call("aten.upsample_nearest2d.vec", input=x, output_size=(7, 9), scale_factors=None)
    yield call("aten.upsample_nearest1d.default", self=floats(2, 3, 5), output_size=(12,))
    yield call("aten.upsample_nearest1d.vec", input=floats(2, 3, 5), output_size=None, scale_factors=(2.0,))


RESAMPLINGS: list[tuple[tuple[int, int], tuple[float | None, float | None]]] = [
    ((8, 10), (2.0, 2.0)),
    ((8, 10), (None, None)),
    ((12, 5), (3.0, 1.0)),
    ((7, 9), (None, None)),
    ((6, 7), (1.5, 1.5)),
    ((2, 2), (0.5, 0.5)),
]


# ---- what is refused


def malformed() -> Iterator[Call]:
    whole, none = np.ones((2, 3), np.int64), (0, 0)
    x, plane, w = floats(3, 5), floats(2, 4, 6, 6), floats(4, 4, 3, 3)
    yield call("aten.mm.default", self=x, mat2=floats(4, 5))
    yield call("aten.mm.default", self=x, mat2=narrow(5, 4))
    yield call("aten.bmm.default", self=floats(2, 3, 5), mat2=floats(1, 5, 4))
    yield call("aten.mv.default", self=x, vec=floats(5, 1))
    yield call("aten.dot.default", self=floats(5), tensor=floats(4))
    yield call("aten.vdot.default", self=floats(5), other=floats(5, 1))
    yield call("aten.addmm.default", self=floats(5), mat1=x, mat2=floats(5, 4))
    yield call("aten.addmv.default", self=floats(5), mat=x, vec=floats(5))
    yield call("aten.baddbmm.default", self=floats(2, 3, 4), batch1=floats(2, 3, 5), batch2=floats(2, 4, 4))
    yield call("aten.matmul.default", self=x, other=np.ones((), np.float32))
    yield call("aten.linear.default", input=x, weight=floats(4, 5), bias=floats(3))
    given = geometry_of(plane.shape, {})
    for wrong in (
        {"stride": (0, 1)},
        {"padding": (-1, 0)},
        {"groups": 3},
        {"groups": 0},
        {"dilation": (9, 9)},
        {"stride": (1, 1, 1)},
        {"output_padding": (1, 1)},
    ):
        yield call("aten.convolution.default", input=plane, weight=w, bias=None, **(given | wrong))
    yield call("aten.convolution.default", input=plane, weight=w, bias=floats(3), **given)
    both = {"input": plane, "weight": w, "bias_sizes": None, **given}
    name = "aten.convolution_backward.default"
    yield call(name, grad_output=plane, **both, output_mask=(True, True, True))
    yield call(name, grad_output=floats(2, 4, 4, 4), **both, output_mask=(True, True))
    yield call("aten.conv1d.default", input=plane, weight=w)
    yield call("aten.conv2d.default", input=plane, weight=floats(4, 3, 3, 3))
    yield call("aten.conv3d.default", input=plane, weight=floats(4, 4, 3, 3, 3, 3))
    yield call("aten.conv1d.padding", input=floats(2, 3, 8), weight=floats(4, 3, 3), padding="full")
    yield call("aten.conv2d.padding", input=plane, weight=w, padding="same", stride=(2, 2))
    yield call("aten.conv3d.padding", input=plane, weight=w, padding="same")
    yield call("aten.conv_transpose1d.default", input=floats(2, 3, 8), weight=floats(4, 3, 3))
    yield call("aten.conv_transpose3d.input", input=plane, weight=w)
    yield call("aten.conv_transpose2d.input", input=plane, weight=w, padding=(-1, -1))
    for wrong in ({"kernel_size": (9, 9)}, {"kernel_size": (2, 2), "padding": (2, 2)}, {"kernel_size": (2, 2, 2)}):
        for pool in ("aten.max_pool2d.default", "aten.max_pool2d_with_indices.default", "aten.avg_pool2d.default"):
            yield call(pool, self=plane, **wrong)
    yield call("aten.avg_pool2d.default", self=plane, kernel_size=(2, 2), divisor_override=0)
    window: dict[str, Any] = {"kernel_size": (2, 2), "stride": (2, 2), "padding": none, "ceil_mode": False}
    name, gradient = "aten.max_pool2d_with_indices_backward.default", floats(2, 4, 3, 3)
    small = np.zeros(gradient.shape, np.int64)
    yield call(name, grad_output=plane, self=plane, **window, dilation=(1, 1), indices=small)
    yield call(name, grad_output=gradient, self=plane, **window, dilation=(1, 1), indices=gradient)
    rest = {"count_include_pad": True, "divisor_override": None}
    yield call("aten.avg_pool2d_backward.default", grad_output=plane, self=plane, **window, **rest)
    for name in ("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default"):
        yield call(name, self=plane, output_size=(0, 1))
        yield call(name, self=x, output_size=(1, 1))
    yield call("aten._adaptive_avg_pool2d_backward.default", grad_output=floats(2, 3, 1, 1), self=plane)
    yield from malformed_normalizations(x, plane)
    yield from malformed_attentions()
    yield call("aten.embedding.default", weight=floats(7), indices=whole)
    yield call("aten.embedding.default", weight=floats(7, 4), indices=floats(2))
    given = {"num_weights": 7, "padding_idx": -1, "scale_grad_by_freq": False}
    yield call("aten.embedding_dense_backward.default", grad_output=floats(2, 4), indices=whole, **given)
    negative = given | {"num_weights": -1}
    yield call("aten.embedding_dense_backward.default", grad_output=floats(2, 3, 4), indices=whole, **negative)
    yield from malformed_resamplings(plane)


def malformed_normalizations(x: Array, plane: Array) -> Iterator[Call]:
    yield call("aten.layer_norm.default", input=x, normalized_shape=(4,))
    yield call("aten.layer_norm.default", input=x, normalized_shape=())
    affine = {"weight": floats(4), "bias": None}
    yield call("aten.native_layer_norm.default", input=x, normalized_shape=(5,), **affine, eps=1e-5)
    given: dict[str, Any] = {"grad_out": x, "input": x, "normalized_shape": (5,), "weight": None, "bias": None}
    column = floats(3, 1)
    name, mask = "aten.native_layer_norm_backward.default", (True, False, False)
    yield call(name, **given, mean=floats(3), rstd=column, output_mask=mask)
    yield call(name, **given, mean=column, rstd=column, output_mask=(True, True, False))
    yield call("aten.group_norm.default", input=plane, num_groups=3)
    yield call("aten.group_norm.default", input=floats(4), num_groups=1)
    sizes = {"N": 2, "C": 4, "HxW": 36, "group": 2}
    bare = {"input": plane, "weight": None, "bias": None}
    yield call("aten.native_group_norm.default", **bare, **(sizes | {"N": 3}), eps=1e-5)
    statistics = {"mean": floats(2, 2), "rstd": floats(2, 3), "weight": None}
    name = "aten.native_group_norm_backward.default"
    yield call(name, grad_out=plane, input=plane, **statistics, **sizes, output_mask=(True, True, True))
    rest: dict[str, Any] = {"momentum": 0.1, "eps": 1e-5}
    running = {"running_mean": floats(4), "running_var": floats(4) ** 2}
    short, nothing = {"running_mean": floats(3), "running_var": floats(4)}, {"running_mean": None, "running_var": None}
    yield call("aten.batch_norm.default", **bare, **nothing, training=False, **rest, cudnn_enabled=False)
    yield call("aten.native_batch_norm.default", **bare, **short, training=True, **rest)
    yield call("aten._native_batch_norm_legit.default", **bare, **short, training=False, **rest)
    yield call("aten._native_batch_norm_legit.no_stats", **bare, training=False, **rest)
    yield call("aten._native_batch_norm_legit_functional.default", **bare, **short, training=True, **rest)
    yield call("aten._native_batch_norm_legit_no_training.default", **bare, **short, **rest)
    saved = {"save_mean": None, "save_invstd": None, "train": True, "eps": 1e-5, "output_mask": (True, True, True)}
    name = "aten.native_batch_norm_backward.default"
    yield call(name, grad_out=plane, input=plane, weight=None, **running, **saved)
    yield call("aten.rms_norm.default", input=np.ones((3, 5), np.int64), normalized_shape=(5,))
    yield call("aten._fused_rms_norm.default", input=x, normalized_shape=(3,), weight=None, eps=None)
    given = {"grad_out": x, "input": x, "normalized_shape": (5,), "weight": None}
    yield call("aten._fused_rms_norm_backward.default", **given, rstd=column, output_mask=(True, True))


def malformed_attentions() -> Iterator[Call]:
    q, k = floats(2, 4, 5, 8), floats(2, 4, 7, 8)
    mask = floats(5, 7)
    names = {"query": q, "key": k, "value": k}
    for name in (
        "aten.scaled_dot_product_attention.default",
        "aten._scaled_dot_product_attention_math.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
    ):
        yield call(name, **names, dropout_p=0.1)
        yield call(name, **names, is_causal=True, attn_mask=mask)
        yield call(name, **names, scale=float("inf"))
        yield call(name, query=q, key=floats(2, 4, 7, 6), value=k)
    yield call("aten._scaled_dot_product_attention_math.default", **names, attn_mask=mask > 0)
    yield call("aten._scaled_dot_product_flash_attention_for_cpu.default", **names, attn_mask=mask > 0)
    for heads in (0, 3):
        few = floats(2, heads, 7, 8)
        yield call("aten._scaled_dot_product_flash_attention_for_cpu.default", query=q, key=few, value=few)
    rest = {"dropout_p": 0.0, "is_causal": False, "out": q}
    name = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
    yield call(name, **names, **rest, grad_out=k, logsumexp=floats(2, 4, 5))
    yield call(name, **names, **rest, grad_out=q, logsumexp=floats(2, 4, 5, 1))


def malformed_resamplings(plane: Array) -> Iterator[Call]:
    for size in ((0, 6), (1 << 40, 6), (6,)):
        yield call("aten.upsample_nearest2d.default", self=plane, output_size=size)
        given = {"grad_output": plane, "output_size": size, "input_size": (2, 4, 3, 3)}
        yield call("aten.upsample_nearest2d_backward.default", **given)
    for name in ("aten.upsample_nearest2d.vec", "aten.upsample_nearest1d.vec"):
        yield call(name, input=plane, output_size=None, scale_factors=None)
        yield call(name, input=plane, output_size=None, scale_factors=(float("nan"), 1.0))
    yield call("aten.upsample_nearest1d.default", self=plane, output_size=(12,))


def by_operator(calls: Iterator[Call]) -> dict[str, list[Call]]:
    """The calls of each operator."""
    found: dict[str, list[Call]] = {}
    for each in calls:
        found.setdefault(each.operator, []).append(each)
    return found


def every_call() -> Iterator[Call]:
    for part in (contractions, convolutions, pools, normalizations, attentions, embeddings, resamplings):
        yield from part()


EXAMPLES = by_operator(every_call())
MALFORMED = by_operator(malformed())
