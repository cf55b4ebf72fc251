"""Losses and their gradients; `reduction` is 0 for none, 1 for the mean, 2 for the sum.

Kernels of PyTorch for 16-bit dtypes round every step to 16 bits and accumulate in F32.
"""
# ruff: noqa: D103  (a decorator says what an operator means)

from __future__ import annotations

import math
from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.aten.activation import log_of_sigmoid, log_softmax_along
from tallystick.programs.operators.aten.arguments import constant, divided, narrowly_met
from tallystick.programs.operators.definition import Family

FAMILY = Family("aten")
NONE: Final = 0
MEAN: Final = 1
SUM: Final = 2
_LOG_MIN: Final = -100.0  # PyTorch's least logarithm in a binary cross entropy
_SLOPE_MIN: Final = 1e-12  # PyTorch's least variance of a Bernoulli variable in its gradient


# ---- negative log-likelihood


@FAMILY.composite("nll_loss_forward.default", "−Σ w · self[target] / Σ w, and Σ w")
@FAMILY.composite("nll_loss2d_forward.default", "as nll_loss_forward, per pixel")
def nll_loss_forward(
    a: Algebra[V], self: V, target: V, weight: V | None, reduction: int, ignore_index: int
) -> tuple[V, V]:
    """Classes along axis 1, or along the only one; weights are 1 where there are none.

    Targets that equal `ignore_index` weigh nothing; any other outside the classes raises `MalformedError` where values
    are known. Without a reduction the total weight is 0, unless there is one target only. Kernels accumulate in the
    dtype of `self`, 16-bit floats included.
    """
    return _nll(a, self, target, weight, reduction, ignore_index)


@FAMILY.composite("nll_loss_backward.default", "−w · grad at the target")
@FAMILY.composite("nll_loss2d_backward.default", "as nll_loss_backward")
def nll_loss_backward(
    a: Algebra[V],
    grad_output: V,
    self: V,
    target: V,
    weight: V | None,
    reduction: int,
    ignore_index: int,
    total_weight: V,
) -> V:
    """0 at all classes but the target; by the total weight for the mean."""
    index, counts = _index(a, self, target, ignore_index)
    weights = _weights(a, self, index, counts, weight)
    g = divided(a, grad_output, total_weight) if _checked(reduction) == MEAN else grad_output
    slope = a.neg(a.mul(weights, g))
    axis = _class_axis(self)
    sides = [side if place == axis else 1 for place, side in enumerate(self.shape)]
    is_target = a.compare(_raised(a, index, axis), a.iota(sides, axis, index.dtype), "eq")
    chosen = a.logical_and(is_target, _raised(a, counts, axis))
    return a.broadcast(a.where(chosen, _raised(a, slope, axis), 0), self.shape)


@FAMILY.composite("cross_entropy_loss.default", "negative log-likelihood of the softmax")
def cross_entropy(
    a: Algebra[V],
    self: V,
    target: V,
    weight: V | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> V:
    """Of class indices, or of probabilities of the shape of `self`; smoothing mixes in the mean over the classes."""
    axis = _class_axis(self)
    if not self.shape[axis]:
        raise MalformedError("cross entropy over no classes")
    logs = a.cast(log_softmax_along(a, a.wide(self), axis, self.dtype), self.dtype)
    if target.dtype in FLOATS:
        return _expected(a, logs, target, weight, reduction, label_smoothing)
    hard, _ = _nll(a, logs, target, weight, reduction, ignore_index)
    if label_smoothing == 0:
        return hard
    smooth = _smooth(a, logs, target, weight, reduction, ignore_index)
    part = constant(a, label_smoothing / self.shape[axis], self.dtype)
    return a.add(a.mul(hard, constant(a, 1 - label_smoothing, self.dtype)), a.mul(smooth, part))


# ---- distances


@FAMILY.composite("mse_loss.default", "(self − target)²")
def mse_loss(a: Algebra[V], self: V, target: V, reduction: int = 1) -> V:
    apart = a.sub(*narrowly_met(a, self, target))
    return _reduced(a, a.mul(apart, apart), reduction)


@FAMILY.composite("mse_loss_backward.default", "2 (self − target) · grad")
def mse_loss_backward(a: Algebra[V], grad_output: V, self: V, target: V, reduction: int) -> V:
    """Kernels round 2/n, or divide by n."""
    g, x, y = narrowly_met(a, grad_output, self, target)
    apart = a.sub(x, y)
    return a.mul(a.mul(apart, g), _share(a, 2.0, apart, reduction))


@FAMILY.composite("l1_loss.default", "|self − target|")
def l1_loss(a: Algebra[V], self: V, target: V, reduction: int = 1) -> V:
    return _reduced(a, a.abs(a.sub(*narrowly_met(a, self, target))), reduction)


@FAMILY.composite("smooth_l1_loss.default", "d²/2β below β, else |d| − β/2")
def smooth_l1_loss(a: Algebra[V], self: V, target: V, reduction: int = 1, beta: float = 1.0) -> V:
    """Girshick 2015, §2.3; d = self − target."""
    size = a.abs(a.sub(*narrowly_met(a, self, target)))
    if beta == 0:
        return _reduced(a, size, reduction)
    near = divided(a, a.mul(a.mul(size, size), 0.5), beta)
    far = a.sub(size, a.mul(a.full((), beta, size.dtype), 0.5))
    return _reduced(a, a.where(a.compare(size, beta, "lt"), near, far), reduction)


@FAMILY.composite("smooth_l1_loss_backward.default", "d/β between −β and β, else the sign, times grad")
def smooth_l1_loss_backward(a: Algebra[V], grad_output: V, self: V, target: V, reduction: int, beta: float) -> V:
    g, x, y = narrowly_met(a, grad_output, self, target)
    apart = a.sub(x, y)
    slope = a.where(a.compare(a.abs(apart), beta, "lt"), divided(a, apart, beta), a.sign(apart))
    return a.mul(a.mul(slope, g), _share(a, 1.0, apart, reduction))


@FAMILY.composite("huber_loss.default", "d²/2 up to δ, else δ (|d| − δ/2)")
def huber_loss(a: Algebra[V], self: V, target: V, reduction: int = 1, delta: float = 1.0) -> V:
    """Huber 1964; d = self − target."""
    size = a.abs(a.sub(*narrowly_met(a, self, target)))
    far = a.mul(a.sub(size, a.mul(a.full((), delta, size.dtype), 0.5)), delta)
    losses = a.where(a.compare(size, delta, "le"), a.mul(a.mul(size, size), 0.5), far)
    return _reduced(a, losses, reduction)


@FAMILY.composite("huber_loss_backward.default", "d clamped to [−δ, δ], times grad")
def huber_loss_backward(a: Algebra[V], grad_output: V, self: V, target: V, reduction: int, delta: float) -> V:
    g, x, y = narrowly_met(a, grad_output, self, target)
    apart = a.sub(x, y)
    slope = a.maximum(a.minimum(apart, delta), -delta)
    return a.mul(a.mul(slope, g), _share(a, 1.0, apart, reduction))


# ---- binary cross entropy


@FAMILY.composite("binary_cross_entropy.default", "−t log p − (1 − t) log (1 − p)")
def binary_cross_entropy(a: Algebra[V], self: V, target: V, weight: V | None = None, reduction: int = 1) -> V:
    """Logarithms are at least −100."""
    p, t = self, target
    failure = a.mul(a.sub(t, 1), a.maximum(a.log1p(a.neg(p)), _LOG_MIN))
    losses = a.sub(failure, a.mul(t, a.maximum(a.log(p), _LOG_MIN)))
    return _reduced(a, _weighed(a, losses, weight), reduction)


@FAMILY.composite("binary_cross_entropy_backward.default", "grad (p − t) / (p (1 − p))")
def binary_cross_entropy_backward(
    a: Algebra[V], grad_output: V, self: V, target: V, weight: V | None = None, reduction: int = 1
) -> V:
    """The divisor is at least 10⁻¹², which kernels for F64 keep in F32."""
    g, p, t = grad_output, self, target
    variance = a.maximum(a.mul(a.sub(1, p), p), a.cast(a.full((), _SLOPE_MIN, "F32"), p.dtype))
    slope = _weighed(a, a.div(a.mul(g, a.sub(p, t)), variance), weight)
    return a.mul(slope, _share(a, 1.0, p, reduction))


@FAMILY.composite("binary_cross_entropy_with_logits.default", "(1 − t) x − (1 + (pos_weight − 1) t) log sigmoid(x)")
def binary_cross_entropy_with_logits(
    a: Algebra[V], self: V, target: V, weight: V | None = None, pos_weight: V | None = None, reduction: int = 1
) -> V:
    x, t = self, target
    logs = log_of_sigmoid(a, x)
    if pos_weight is not None:
        logs = a.mul(logs, a.add(a.mul(t, a.sub(pos_weight, 1)), 1))
    losses = a.sub(a.mul(a.sub(1, t), x), logs)
    return _reduced(a, _weighed(a, losses, weight), reduction)


# ---- reductions


def _checked(reduction: int) -> int:
    if reduction not in {NONE, MEAN, SUM}:
        raise MalformedError(f"reduction {reduction} is neither none, mean nor sum")
    return reduction


def _reduced(a: Algebra[V], losses: V, reduction: int) -> V:
    if _checked(reduction) == NONE:
        return losses
    total = a.sum(a.wide(losses), tuple(range(len(losses.shape))))
    return a.cast(divided(a, total, math.prod(losses.shape)) if reduction == MEAN else total, losses.dtype)


def _share(a: Algebra[V], factor: float, losses: V, reduction: int) -> V:
    """`factor`, divided by the number of losses for a mean."""
    count = math.prod(losses.shape) if _checked(reduction) == MEAN else 1
    return constant(a, factor / count if count else math.inf, losses.dtype)


def _weighed(a: Algebra[V], losses: V, weight: V | None) -> V:
    return losses if weight is None else a.mul(losses, weight)


# ---- classes


def _class_axis(x: V) -> int:
    if not x.shape:
        raise MalformedError("a loss over classes of a tensor without axes")
    return min(len(x.shape) - 1, 1)


def _raised(a: Algebra[V], x: V, axis: int) -> V:
    """With a class axis of side 1."""
    return a.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def _index(a: Algebra[V], x: V, target: V, ignore_index: int) -> tuple[V, V]:
    """The class of each target, 0 for ignored ones, and which count; a negative class becomes one too large."""
    axis = _class_axis(x)
    if (*x.shape[:axis], *x.shape[axis + 1 :]) != tuple(target.shape):
        raise MalformedError(f"targets {tuple(target.shape)} of predictions {tuple(x.shape)}")
    wide = a.cast(target, "I64")
    counts = a.compare(wide, ignore_index, "ne")
    shown = a.where(a.compare(wide, 0, "lt"), x.shape[axis], wide)
    return a.where(counts, shown, 0), counts


def _nll(a: Algebra[V], self: V, target: V, weight: V | None, reduction: int, ignore_index: int) -> tuple[V, V]:
    picked, weights = _picked(a, self, target, weight, ignore_index)
    losses = a.neg(a.mul(picked, weights))
    if _checked(reduction) == NONE:
        return losses, a.full((), 0, self.dtype) if losses.shape else weights
    axes = tuple(range(len(losses.shape)))
    total, weighed = a.sum(losses, axes), a.sum(weights, axes)
    return divided(a, total, weighed) if reduction == MEAN else total, weighed


def _weights(a: Algebra[V], x: V, index: V, counts: V, weight: V | None) -> V:
    one = a.full((), 1, x.dtype) if weight is None else a.take(weight, (index,), 0)
    return a.where(counts, one, 0)


def _picked(a: Algebra[V], x: V, target: V, weight: V | None, ignore_index: int) -> tuple[V, V]:
    """What was predicted of each target, and its weight; both 0 where it is ignored."""
    index, counts = _index(a, x, target, ignore_index)
    axis = _class_axis(x)
    predicted = a.reshape(a.take_along(x, _raised(a, index, axis), axis), index.shape)
    return a.where(counts, predicted, 0), _weights(a, x, index, counts, weight)


def _smooth(a: Algebra[V], logs: V, target: V, weight: V | None, reduction: int, ignore_index: int) -> V:
    """The sum over the classes, each with its weight, reduced as the loss of the targets is."""
    axis = _class_axis(logs)
    index, counts = _index(a, logs, target, ignore_index)
    losses = a.where(counts, a.neg(a.sum(_class_weighed(a, logs, weight), (axis,))), 0)
    if reduction == NONE:
        return losses
    axes = tuple(range(len(losses.shape)))
    total, weights = a.sum(losses, axes), _weights(a, logs, index, counts, weight)
    return divided(a, total, a.sum(weights, axes)) if reduction == MEAN else total


def _expected(a: Algebra[V], logs: V, target: V, weight: V | None, reduction: int, label_smoothing: float) -> V:
    """−Σ p log q; the mean is over the targets, not over the classes."""
    axis = _class_axis(logs)
    if label_smoothing > 0:
        kept, mixed = 1 - label_smoothing, label_smoothing / logs.shape[axis]
        target = a.add(a.mul(target, constant(a, kept, logs.dtype)), constant(a, mixed, logs.dtype))
    losses = a.neg(a.sum(a.mul(_class_weighed(a, logs, weight), target), (axis,)))
    return _reduced(a, losses, reduction)


def _class_weighed(a: Algebra[V], logs: V, weight: V | None) -> V:
    if weight is None:
        return logs
    axis = _class_axis(logs)
    return a.mul(logs, a.reshape(weight, [side if place == axis else 1 for place, side in enumerate(logs.shape)]))
