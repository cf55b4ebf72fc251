"""Layers in the shapes of MobileNetV2, ResNet and small language models, in float32, with few examples of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tests.programs.operators.examples import Call, call

CONVOLUTIONS: Final = (
    (2, 3, 32, 32, 3, 2, 1),
    (4, 96, 14, 96, 3, 1, 96),
    (4, 96, 14, 96, 3, 2, 96),
    (4, 32, 14, 192, 1, 1, 1),
    (4, 64, 8, 64, 3, 1, 1),
    (2, 3, 56, 16, 7, 2, 1),
    (32, 16, 7, 16, 5, 1, 4),
)
"""Examples, channels, side, channels out, kernel, stride, groups."""
MOMENTA: Final = (0.1, 0.01, 1 / 3, 0.9, 0.997, 0.999)
WIDTHS: Final = ((64, 576, 1536), (64, 1536, 576), (4, 576, 49152), (197, 192, 768))
"""Rows, width, width of the result."""


class Draw:
    """Normal numbers of any shape, always the same ones."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __call__(self, *shape: int) -> Any:
        return self.rng.standard_normal(shape).astype(np.float32)


def real_layers() -> Iterator[Call]:
    """All of them."""
    x = Draw()
    for shape in CONVOLUTIONS:
        yield from _convolutions(x, *shape)
    yield call("aten.conv_transpose2d.input", input=x(8, 64, 7, 7), weight=x(64, 32, 4, 4), bias=x(32),
               stride=(2, 2), padding=(1, 1))  # fmt: skip
    yield call("aten.conv3d.default", input=x(2, 8, 8, 8, 8), weight=x(16, 8, 3, 3, 3), bias=x(16), padding=(1, 1, 1))
    for channels, side in ((32, 14), (96, 7), (16, 1)):
        yield from _batch_norms(x, channels, side)
    yield from _products(x)
    yield from _normalizations(x)
    yield from _language(x)
    yield from _sums(x)


def _convolutions(
    x: Draw, batch: int, channels: int, side: int, out: int, kernel: int, stride: int, groups: int
) -> Iterator[Call]:
    weight = x(out, channels // groups, kernel, kernel) / np.float32(np.sqrt(kernel * kernel * channels / groups))
    numbers = {"padding": (kernel // 2,) * 2, "stride": (stride,) * 2, "dilation": (1, 1), "groups": groups}
    numbers |= {"transposed": False, "output_padding": (0, 0)}
    image, after = x(batch, channels, side, side), (side + 2 * (kernel // 2) - kernel) // stride + 1
    yield call("aten.convolution.default", input=image, weight=weight, bias=x(out), **numbers)
    gradient = x(batch, out, after, after)
    operands = {"grad_output": gradient, "input": image, "weight": weight, "bias_sizes": (out,)}
    yield call("aten.convolution_backward.default", **operands, output_mask=(True,) * 3, **numbers)


def _batch_norms(x: Draw, channels: int, side: int) -> Iterator[Call]:
    """Of ordinary channels, and of dead ones, whose running statistics only fade."""
    image, affine = x(8, channels, side, side), {"weight": x(channels), "bias": x(channels)}
    running = {"running_mean": x(channels), "running_var": abs(x(channels))}
    for momentum in MOMENTA:
        for scale in (1, 0):
            yield call("aten._native_batch_norm_legit_functional.default", input=image * np.float32(scale), **affine,
                       **running, training=True, momentum=momentum, eps=1e-5)  # fmt: skip
    kept = {"save_mean": image.mean((0, 2, 3)), "save_invstd": (image.var((0, 2, 3)) + 1e-5) ** np.float32(-0.5)}
    yield call("aten.native_batch_norm_backward.default", grad_out=x(*image.shape), input=image, weight=x(channels),
               **running, **kept, train=True, eps=1e-5, output_mask=(True,) * 3)  # fmt: skip


def _products(x: Draw) -> Iterator[Call]:
    for rows, inner, outer in WIDTHS:
        weight = x(outer, inner) / np.float32(np.sqrt(inner))
        yield call("aten.linear.default", input=x(rows, inner), weight=weight, bias=x(outer))
        yield call("aten.addmm.default", self=x(outer), mat1=x(rows, inner), mat2=weight.T.copy(), beta=0.3, alpha=0.7)
    yield call("aten.bmm.default", self=x(9, 64, 64), mat2=x(9, 64, 64))
    yield call("aten.addmv.default", self=x(576), mat=x(576, 1536), vec=x(1536), beta=0.3, alpha=0.7)


def _normalizations(x: Draw) -> Iterator[Call]:
    """Forward and backward over rows of 576, and over groups of channels."""
    rows, gain, shift = x(200, 576), x(576), x(576)
    mean = rows.mean(1, keepdims=True)
    rstd = (1 / np.sqrt(rows.var(1, keepdims=True) + 1e-5)).astype(np.float32)
    affine = {"normalized_shape": (576,), "weight": gain, "bias": shift}
    yield call("aten.native_layer_norm.default", input=rows, **affine, eps=1e-5)
    yield call("aten.native_layer_norm_backward.default", grad_out=x(200, 576), input=rows, mean=mean, rstd=rstd,
               output_mask=(True,) * 3, **affine)  # fmt: skip
    yield call("aten._fused_rms_norm.default", input=rows, normalized_shape=(576,), weight=gain, eps=1e-6)
    image, sides = x(8, 64, 14, 14), {"N": 8, "C": 64, "HxW": 196, "group": 8}
    yield call("aten.native_group_norm.default", input=image, weight=x(64), bias=x(64), **sides, eps=1e-5)
    grouped = image.reshape(8, 8, -1)
    kept = {"mean": grouped.mean(2), "rstd": (grouped.var(2) + 1e-5) ** np.float32(-0.5)}
    yield call("aten.native_group_norm_backward.default", grad_out=x(8, 64, 14, 14), input=image, **kept, weight=x(64),
               **sides, output_mask=(True,) * 3)  # fmt: skip


def _language(x: Draw) -> Iterator[Call]:
    qkv = {"query": x(1, 9, 64, 64), "key": x(1, 9, 64, 64), "value": x(1, 9, 64, 64)}
    yield call("aten.scaled_dot_product_attention.default", **qkv, attn_mask=None, is_causal=True)
    logits, along = 4 * x(4, 49152), {"dim": 1, "half_to_float": False}
    yield call("aten._softmax.default", self=logits, **along)
    yield call("aten._log_softmax.default", self=logits, **along)
    yield call("aten.logsumexp.default", self=logits, dim=(1,))
    targets = x.rng.integers(0, 1000, 512)
    for smoothing in (0.0, 0.1, 0.997):
        yield call("aten.cross_entropy_loss.default", self=x(512, 1000), target=targets, label_smoothing=smoothing)
    yield call("aten.nll_loss_forward.default", self=-abs(x(512, 1000)), target=targets, weight=None, reduction=1,
               ignore_index=-100)  # fmt: skip
    yield call("aten.embedding_dense_backward.default", grad_output=x(512, 64), indices=targets % 32, num_weights=32,
               padding_idx=-1, scale_grad_by_freq=False)  # fmt: skip


def _sums(x: Draw) -> Iterator[Call]:
    """What adds up many elements."""
    yield call("aten.mean.dim", self=x(8, 1280, 7, 7), dim=(2, 3))
    yield call("aten.sum.dim_IntList", self=x(512, 576), dim=(0,))
    yield call("aten.cumsum.default", self=x(4, 1024), dim=1)
    yield call("aten.var.correction", self=x(4, 1024), dim=(1,), correction=1)
    yield call("aten.linalg_vector_norm.default", self=x(64, 576))
    for order in (1 / 3, 0.947, 2.5):
        yield call("aten.linalg_vector_norm.default", self=np.float32(1e23) * x(64, 3), ord=order, dim=(1,))
    index = x.rng.integers(0, 8, 512)
    yield call("aten.scatter_add.default", self=x(8, 16), dim=0, index=np.tile(index[:, None], 16), src=x(512, 16))
    yield call("aten.index_add.default", self=x(8, 16), dim=0, index=index, source=x(512, 16), alpha=0.3)
    yield call("aten.index_put.default", self=x(8, 16), indices=(index,), values=x(512, 16), accumulate=True)
    yield call("aten.mse_loss.default", self=x(64, 100), target=x(64, 100))
    yield call("aten.avg_pool2d.default", self=x(8, 32, 14, 14), kernel_size=(7, 7))
    yield call("aten.upsample_nearest2d_backward.default", grad_output=x(2, 8, 56, 56), output_size=(56, 56),
               input_size=(2, 8, 7, 7))  # fmt: skip
