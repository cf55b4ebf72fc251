"""Calls whose masks hide everything, whose scales are no positive number of ordinary size, and whose sums divide by 0.

A kernel may set a masked entry to −∞ before it scales or after, leave out a row without entries or divide it by 0, and
count an overflow beside a mask or not. What a bound promises of these elements has to hold for every one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.programs.operators.examples import Call, call

Array = npt.NDArray[Any]
SCALES: Final = (-0.7, 0.0, 1e-30, -1e-30, 1e30, 1e-310, 3.4e38, None)
SMALLEST: Final = float(np.finfo(np.float32).min)
INFINITE: Final = float("inf")
FORWARD: Final = "aten._scaled_dot_product_flash_attention_for_cpu.default"


class Drawn:
    """Operands in float64; the search casts them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([29, seed])

    def __call__(self, *shape: int, size: float = 1.0) -> Array:
        return self.rng.standard_normal(shape) * size

    def rows(self, *shape: int) -> Array:
        """Rows of every kind: ordinary, constant, zero, of −∞ alone, with some −∞, with +∞, with NaN, huge, tiny."""
        x = self(*shape)
        flat = x.reshape(-1, shape[-1])
        for index in range(len(flat)):
            flat[index] = self._row(flat[index], index % 12)
        return x

    def _row(self, row: Array, kind: int) -> Array:
        hidden = np.arange(row.size) % 2 == 0
        kinds: tuple[Any, ...] = (
            row, np.full_like(row, 0.1), np.zeros_like(row), np.full_like(row, -INFINITE),
            np.where(hidden, -INFINITE, row), np.where(hidden, INFINITE, row), np.where(hidden, np.nan, row),
            row * 1e38, row * 1e-42, np.full_like(row, SMALLEST), np.where(hidden, SMALLEST, row),
            np.where(hidden, SMALLEST, -INFINITE),
        )  # fmt: skip
        return np.asarray(kinds[kind])


def degenerate_calls(seed: int = 0) -> Iterator[Call]:
    """All of them, with float64 operands."""
    x = Drawn(seed)
    for part in (_attentions, _softmaxes, _losses, _normalizations, _batch_norms, _reductions, _masks, _pools, _tables):
        yield from part(x)


def _attentions(x: Drawn) -> Iterator[Call]:
    shapes = ((2, 5, 7, 1.0), (1, 7, 5, 1.0), (4, 33, 40, 1.0), (2, 5, 7, 1e19))
    for scale, (heads, length, keys, size) in product(SCALES, shapes):
        q, k, v = x(1, 4, length, 8, size=size), x(1, heads, keys, 8, size=size), x(1, heads, keys, 8)
        for given in _masked(x, length, keys):
            yield from _attended(q, k, v, {"scale": scale, **given})


def backward_of(forward: Call, out: Any, logsumexp: Any) -> Call:
    """The gradient of fused attention after a forward call with these results."""
    given = {name: value for name, value in forward.arguments.items() if name != "attn_mask"}
    name = FORWARD.replace(".default", "_backward.default")
    mask = forward.arguments["attn_mask"]
    return call(name, grad_out=forward.arguments["query"], **given, attn_mask=mask, out=out, logsumexp=logsumexp)


def _masked(x: Drawn, length: int, keys: int) -> Iterator[dict[str, Any]]:
    yield {}
    yield {"is_causal": True}
    hidden = x.rng.random((length, keys)) < 0.4
    hidden[1], hidden[2] = True, False
    for number in (-INFINITE, SMALLEST, -1e4, INFINITE):
        yield {"attn_mask": np.where(hidden, number, 0.0)}
    yield {"attn_mask": ~hidden}


def _attended(q: Array, k: Array, v: Array, given: Mapping[str, Any]) -> Iterator[Call]:
    names = {"query": q, "key": k, "value": v}
    grouped = {"enable_gqa": True} if k.shape[1] != q.shape[1] else {}
    yield call("aten.scaled_dot_product_attention.default", **names, **given, **grouped)
    mask = given.get("attn_mask")
    if mask is None or mask.dtype != bool:
        yield call("aten._scaled_dot_product_attention_math.default", **names, **given, **grouped)
        yield call(FORWARD, **names, **given)


def _softmaxes(x: Drawn) -> Iterator[Call]:
    for shape, dim in (((24, 17), -1), ((12, 5), -1), ((3, 12, 40), 2), ((24, 17), 0), ((7,), 0)):
        rows = x.rows(*shape)
        for name in ("aten._softmax.default", "aten._log_softmax.default"):
            yield call(name, self=rows, dim=dim, half_to_float=False)
        for name in ("aten.softmax.int", "aten.log_softmax.int", "aten._safe_softmax.default"):
            yield call(name, self=rows, dim=dim)
        yield call("aten.logsumexp.default", self=rows, dim=(dim,), keepdim=False)


def _losses(x: Drawn) -> Iterator[Call]:
    for weighted, reduction, kind in product((None, 0.0, 1.0), (0, 1, 2), ("none", "some", "all")):
        target = np.array([0, 1, 2, 1, 3, 0], np.int64)
        target = {"none": target, "some": np.where(target == 1, -100, target), "all": np.full_like(target, -100)}[kind]
        weight = None if weighted is None else np.array([weighted, 0.0, 1.0, 0.5])
        for rows in (x(6, 4), x.rows(6, 4)):
            names = {"self": rows, "target": target, "weight": weight, "reduction": reduction, "ignore_index": -100}
            yield call("aten.nll_loss_forward.default", **names)
            yield call("aten.cross_entropy_loss.default", **names, label_smoothing=0.0)
            yield call("aten.cross_entropy_loss.default", **names, label_smoothing=0.1)
            total = np.asarray(0.0 if kind == "all" else 3.0)
            grad = x(6) if reduction == 0 else np.asarray(1.0)
            yield call("aten.nll_loss_backward.default", grad_output=grad, **names, total_weight=total)
        image, places = x(2, 4, 3, 3), np.resize(target, (2, 3, 3))
        names = {"self": image, "target": places, "weight": weight, "reduction": reduction, "ignore_index": -100}
        yield call("aten.nll_loss2d_forward.default", **names)
    for reduction in (0, 1, 2):
        p, y = np.array([0.0, 1.0, 0.5, 0.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0, 0.5])
        for weight in (None, np.array([0.0, 1.0, 0.0, 0.0, 2.0])):
            yield call("aten.binary_cross_entropy.default", self=p, target=y, weight=weight, reduction=reduction)
            given = {"self": x.rows(12, 5), "target": np.resize(y, (12, 5)), "reduction": reduction}
            yield call("aten.binary_cross_entropy_with_logits.default", **given, weight=weight)


def _normalizations(x: Drawn) -> Iterator[Call]:
    for width, eps in product((1, 2, 17), (1e-5, 0.0, 1e-12)):
        rows = x.rows(24, width)
        for affine in ({"weight": None, "bias": None}, {"weight": x(width), "bias": x(width)}):
            yield call("aten.native_layer_norm.default", input=rows, normalized_shape=(width,), eps=eps, **affine)
            weight = affine["weight"]
            yield call("aten._fused_rms_norm.default", input=rows, normalized_shape=(width,), weight=weight, eps=eps)
        images = x.rows(3, 4, width)
        yield call("aten.native_group_norm.default", input=images, weight=x(4), bias=None, N=3, C=4, HxW=width, group=2,
                   eps=eps)  # fmt: skip


def _batch_norms(x: Drawn) -> Iterator[Call]:
    for shape, eps, momentum in product(((1, 12, 1), (2, 12, 1), (3, 12, 4)), (1e-5, 0.0), (0.1, 0.0, 1.0)):
        rows = np.swapaxes(x.rows(shape[1], shape[0] * shape[2]).reshape(12, shape[0], shape[2]), 0, 1)
        statistics = {"running_mean": x(12), "running_var": abs(x(12)), "momentum": momentum, "eps": eps}
        given = {"input": np.ascontiguousarray(rows), "weight": x(12), "bias": x(12), **statistics}
        yield call("aten._native_batch_norm_legit_functional.default", training=True, **given)
        yield call("aten._native_batch_norm_legit_no_training.default", **given)


def _reductions(x: Drawn) -> Iterator[Call]:
    for shape in ((24, 1), (24, 2), (24, 17)):
        rows = x.rows(*shape)
        for correction in (0, 1, 2):
            for name in ("aten.var.correction", "aten.std.correction", "aten.var_mean.correction"):
                yield call(name, self=rows, dim=(1,), correction=correction, keepdim=False)
        for order in (2, 1, 0, 3, INFINITE, -INFINITE):
            yield call("aten.linalg_vector_norm.default", self=rows, ord=order, dim=(1,), keepdim=False)
        for name in ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default"):
            yield call(name, self=rows, dim=(1,), keepdim=False)
        for name in ("aten.max.dim", "aten.min.dim", "aten.argmax.default", "aten.argmin.default"):
            yield call(name, self=rows, dim=1, keepdim=False)
        yield call("aten.prod.dim_int", self=rows, dim=1, keepdim=False)
        yield call("aten.cumsum.default", self=rows, dim=1)
        for largest in (True, False):
            yield call("aten.topk.default", self=rows, k=1, dim=1, largest=largest)
            yield call("aten.sort.default", self=rows, dim=1, descending=largest)


def _masks(x: Drawn) -> Iterator[Call]:
    rows = x.rows(24, 17)
    hidden = x.rng.random((24, 17)) < 0.5
    for number in (-INFINITE, INFINITE, SMALLEST, 0.0, float("nan"), -1e4):
        yield call("aten.masked_fill.Scalar", self=rows, mask=hidden, value=number)
        yield call("aten.where.ScalarOther", condition=hidden, self=rows, other=number)
        yield call("aten.scatter.value", self=rows, dim=1, index=np.arange(24).reshape(24, 1) % 17, value=number)
        yield call("aten.mul.Tensor", self=rows, other=np.where(hidden, number, 1.0))
        yield call("aten.add.Tensor", self=rows, other=np.where(hidden, number, 0.0))
        yield call("aten.div.Tensor", self=rows, other=np.where(hidden, number, 1.0))
        yield call("aten.maximum.default", self=rows, other=np.where(hidden, number, 1.0))
        yield call("aten.clamp.default", self=rows, min=number, max=1.0)
        yield call("aten.pow.Tensor_Scalar", self=rows, exponent=number)
    yield call("aten.where.self", condition=hidden, self=rows, other=x.rows(24, 17)[::-1].copy())
    for given in ({}, {"nan": 1.0, "posinf": 2.0, "neginf": -2.0}):
        yield call("aten.nan_to_num.default", self=rows, **given)
    for name in ("exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "erf", "log1p", "expm1", "silu",
                 "sign", "relu", "hardtanh", "softplus", "mish", "elu", "leaky_relu", "log_sigmoid", "hardswish",
                 "hardsigmoid", "gelu", "abs", "sin", "cos"):  # fmt: skip
        yield call(f"aten.{name}.default", self=rows)
    for other in (abs(rows), rows[::-1].copy(), np.where(hidden, 0.0, rows)):
        yield call("aten.xlogy.Tensor", self=rows, other=other)
        yield call("aten.xlogy.Tensor", self=np.where(hidden, 0.0, rows), other=other)
        yield call("aten.special_xlog1py.default", self=np.where(hidden, 0.0, rows), other=other)
    for number in (0.0, 1.0, INFINITE):
        yield call("aten.xlogy.Scalar_Self", self=number, other=rows)
        yield call("aten.xlogy.Scalar_Other", self=rows, other=number)
    for where in (0, 1):
        yield call("aten.scatter_add.default", self=rows, dim=1, index=np.full((24, 3), where), src=x.rows(24, 3))
        yield call("aten.index_add.default", self=rows, dim=0, index=np.array([where, where]), source=x.rows(2, 17))
    yield call("aten.mm.default", self=rows, mat2=x(17, 3))
    yield call("aten.mm.default", self=np.where(hidden, 0.0, rows), mat2=x.rows(17, 3))


def _pools(x: Drawn) -> Iterator[Call]:
    image = x.rows(2, 12, 5)
    for padding, ceil_mode in product(((0, 0), (1, 1)), (False, True)):
        given = {"kernel_size": (3, 3), "stride": (2, 2), "padding": padding, "ceil_mode": ceil_mode}
        yield call("aten.max_pool2d_with_indices.default", self=image, **given)
        for counted in (True, False):
            yield call("aten.avg_pool2d.default", self=image, **given, count_include_pad=counted)
    yield call("aten._adaptive_avg_pool2d.default", self=image, output_size=(3, 2))
    for axis, width in product((0, -1), (1, 8)):
        v = x.rows(12, width) if axis == 0 else np.ascontiguousarray(x.rows(12, width).T)
        g = x(12, 1) if axis == 0 else x(1, 12)
        yield call("aten._weight_norm_interface.default", v=v, g=g, dim=axis % 2)
        norms = np.sqrt(np.square(v).sum(1 - axis % 2, keepdims=True))
        given = {"grad_w": x(*v.shape), "saved_v": v, "saved_g": g, "saved_norms": norms, "dim": axis % 2}
        yield call("aten._weight_norm_interface_backward.default", **given)


def _bags(x: Drawn, table: Array, padding: int) -> Iterator[Call]:
    """Empty bags, bags of padding alone, and one row in many bags."""
    indices, offsets = np.array([3, 3, 1, 0, 3, 5, 1, 1, 11], np.int64), np.array([0, 2, 2, 6], np.int64)
    place = np.array([0, 0, 2, 2, 2, 2, 3, 3, 3], np.int64)
    for mode, factors in ((0, None), (0, x(9)), (1, None), (2, None)):
        given = {"indices": indices, "mode": mode, "padding_idx": padding, "per_sample_weights": factors}
        yield call("aten._embedding_bag.default", weight=table, offsets=offsets, **given)
        sizes = np.array([2, 0, 4, 3], np.int64)
        chosen = x.rng.integers(0, 12, (4, 8)) if mode == 2 else sizes
        given |= {"offset2bag": place, "bag_size": sizes, "maximum_indices": chosen, "num_weights": 12}
        given |= {"scale_grad_by_freq": False}
        yield call("aten._embedding_bag_dense_backward.default", grad=x.rows(4, 8), **given)
        for held in (place, place[:0]):
            called = given | {"offset2bag": held, "offsets": offsets, "sparse": False}
            yield call("aten._embedding_bag_backward.default", grad=x.rows(4, 8), **called)
    given = {"weight": table, "indices": indices, "offsets": offsets, "mode": 0, "padding_idx": padding}
    for held in (place, place[:0]):
        name = "aten._embedding_bag_per_sample_weights_backward.default"
        yield call(name, grad=x.rows(4, 8), offset2bag=held, **given)


def _tables(x: Drawn) -> Iterator[Call]:
    table, places = x.rows(12, 8), np.array([[3, 1, 3], [0, 3, 3]], np.int64)
    for padding, by_frequency in product((-1, 3), (False, True)):
        yield call("aten.embedding.default", weight=table, indices=places, padding_idx=padding)
        given = {"num_weights": 12, "padding_idx": padding, "scale_grad_by_freq": by_frequency}
        yield call("aten.embedding_dense_backward.default", grad_output=x.rows(2, 3, 8), indices=places, **given)
        yield from _bags(x, table, padding)
        every = np.full((2, 3), 3, np.int64)
        yield call("aten.embedding_dense_backward.default", grad_output=x.rows(2, 3, 8), indices=every, **given)
