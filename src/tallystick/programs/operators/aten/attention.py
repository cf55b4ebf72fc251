"""Scaled dot-product attention and its gradient: softmax(q·kᵀ·scale + mask)·v.

Fused kernels process the keys in tiles and keep a running maximum. When it grows, they multiply the partial results by
e^(old − new) (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135, Algorithm 1). The
exponents telescope: every weight is e^(s − max) times one rounded factor per tile. The bound counts these factors as
roundings of the sums over keys. So it holds for any order of tiles, for numerators divided at once or combined later,
and for the unfused kernel. Fused kernels use their own exponentials, `library.FUSED_EXPONENTIAL`.

A forbidden key weighs 0 where every kernel gives it 0. Kernels that add −∞ to a score give NaN where the score
overflows. Fused kernels set the keys after a causal query to −∞ before they scale, so a scale that is 0 or negative
gives NaN too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Generic

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Typed, V
from tallystick.programs.operators.aten.contraction import summand, widened
from tallystick.programs.operators.definition import Family
from tallystick.programs.operators.precision import FORMATS, FUSED_EXPONENTIAL
from tallystick.programs.operators.types import broadcast_shapes

FAMILY: Final = Family("aten")

_SCALINGS: Final = 4

_RESULT: Final = "softmax(q·kᵀ·scale + mask)·v"


@dataclass(frozen=True)
class _Scores(Generic[V]):
    """q·kᵀ·scale + mask without its forbidden entries; if there are any, the BOOL of the others, and their weights."""

    values: V
    allowed: V | None = None
    hidden: V | None = None


@FAMILY.composite("scaled_dot_product_attention.default", _RESULT)
def scaled_dot_product_attention(
    a: Algebra[V],
    query: V,
    key: V,
    value: V,
    attn_mask: V | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> V:
    """[…,l,e], […,s,e] and […,s,d] give […,l,d]; a BOOL mask holds where a key may be seen. No dropout."""
    query, key, value = _aligned(a, query, key, value, enable_gqa)
    _check_options(dropout_p, is_causal, attn_mask)
    return _attend(a, query, key, value, attn_mask, is_causal, scale)[0]


@FAMILY.composite("_scaled_dot_product_attention_math.default", f"{_RESULT}, and the softmax")
def scaled_dot_product_attention_math(
    a: Algebra[V],
    query: V,
    key: V,
    value: V,
    attn_mask: V | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: V | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[V, V]:
    """The result and the weights […,l,s]; masks are added, so a BOOL one is refused. No dropout."""
    if dropout_mask is not None or (attn_mask is not None and attn_mask.dtype == "BOOL"):
        raise MalformedError("attention with a dropout mask, or a BOOL mask where one is added")
    query, key, value = _aligned(a, query, key, value, enable_gqa)
    _check_options(dropout_p, is_causal, attn_mask)
    result, weights, total, _ = _attend(a, query, key, value, attn_mask, is_causal, scale, fused=False)
    return result, a.cast(a.div(weights, total), query.dtype)


@FAMILY.composite(
    "_scaled_dot_product_flash_attention_for_cpu.default", f"{_RESULT}, and the logarithm of the softmax's denominator"
)
def flash_attention(
    a: Algebra[V],
    query: V,
    key: V,
    value: V,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: V | None = None,
    scale: float | None = None,
) -> tuple[V, V]:
    """[b,h,l,e] and twice [b,k,l,e] give [b,h,l,e] and [b,h,l]; 0 where a query sees no key.

    k divides h: that many neighbouring heads of queries share one of keys. [b,h,l] is F32 for F16 and BF16.
    """
    _check_flash(query, key, value, attn_mask)
    _check_options(dropout_p, is_causal, attn_mask)
    keys, values = (_repeated(a, each, query.shape[1]) for each in (key, value))
    result, _, total, shift = _attend(a, query, keys, values, attn_mask, is_causal, scale)
    return result, a.reshape(a.add(shift, a.log(total)), query.shape[:-1])


@FAMILY.composite(
    "_scaled_dot_product_flash_attention_for_cpu_backward.default", "gradients of attention by query, key and value"
)
def flash_attention_backward(
    a: Algebra[V],
    grad_out: V,
    query: V,
    key: V,
    value: V,
    out: V,
    logsumexp: V,
    dropout_p: float,
    is_causal: bool,
    attn_mask: V | None = None,
    scale: float | None = None,
) -> tuple[V, V, V]:
    """Gradients of the shapes of their tensors (Dao et al. 2022, Algorithm 4).

    With P the weights: dV = Pᵀ·dO, dS = P∘(dO·Vᵀ − Σ dO∘O), dQ = dS·K·scale, dK = dSᵀ·Q·scale. A head of keys that
    several heads of queries share gets the sum over all their queries.
    """
    _check_flash(query, key, value, attn_mask)
    _check_options(dropout_p, is_causal, attn_mask)
    if grad_out.shape != query.shape or out.shape != query.shape or logsumexp.shape != query.shape[:-1]:
        raise MalformedError("the shapes of gradient, result and logarithm do not fit the query")
    keys, values = (_repeated(a, each, query.shape[1]) for each in (key, value))
    g, q, k, v, o = widened(a, grad_out, query, keys, values, out)
    scores = _scores(a, q, k, attn_mask, is_causal, scale)
    denominator = a.reshape(a.cast(logsumexp, q.dtype), (*query.shape[:-1], 1))
    weights = _exponential(a, scores, denominator, query.dtype)
    towards = a.sub(_over(a, g, v, -1, -1), a.sum(a.mul(g, o), (3,), keep=True))
    slopes = _narrowed(a, a.mul(a.mul(weights, _scale(q, scale)), towards), query.dtype)
    by_value = _over_queries(a, _narrowed(a, weights, query.dtype), g, key.shape[1])
    by_query, by_key = _over(a, slopes, k, -1, -2), _over_queries(a, slopes, q, key.shape[1])
    return a.cast(by_query, query.dtype), a.cast(by_key, query.dtype), a.cast(by_value, query.dtype)


# ---- the formula


def _attend(
    a: Algebra[V], query: V, key: V, value: V, mask: V | None, is_causal: bool, scale: float | None, fused: bool = True
) -> tuple[V, V, V, V]:
    """The result, e^(s − max), the sum of that over keys, and max."""
    q, k, v = widened(a, query, key, value)
    scores = _scores(a, q, k, mask, is_causal, scale, fused)
    shift = _greatest(a, scores)
    weights = _exponential(a, scores, shift, query.dtype)
    total = a.sum(weights, (len(weights.shape) - 1,), keep=True)
    total = a.where(a.compare(total, 0, "ne"), total, 1) if scores.allowed is not None else total
    summed = _over(a, _narrowed(a, weights, query.dtype), v, -1, -2)
    return a.cast(a.div(summed, total), query.dtype), weights, total, shift


def _scores(
    a: Algebra[V], q: V, k: V, mask: V | None, is_causal: bool, scale: float | None, fused: bool = True
) -> _Scores[V]:
    """Kernels scale the product, or both factors by √scale, which rounds `_SCALINGS` times at most."""
    number = _scale(q, scale)
    values = a.mul(_over(a, summand(a, q, _SCALINGS), k, -1, -1), number)
    if is_causal:
        shape = values.shape[-2:]
        allowed = a.compare(a.iota(shape, 0, "I64"), a.iota(shape, 1, "I64"), "ge")  # keys 0 … i
        may_turn = fused and number < FORMATS[q.dtype].smallest_normal  # a device may read it as 0
        return _Scores(values, allowed, a.full((), math.nan, q.dtype) if may_turn else _hidden(a, values))
    return _Scores(values) if mask is None else _masked(a, values, mask)


def _masked(a: Algebra[V], values: V, mask: V) -> _Scores[V]:
    """Adds a mask of numbers; an entry of −∞ forbids its key instead, so that no infinity enters the arithmetic."""
    hidden = _hidden(a, values)
    if mask.dtype == "BOOL":
        return _Scores(values, a.broadcast(mask, values.shape), hidden)
    added = a.broadcast(a.cast(mask, values.dtype), values.shape)
    allowed = a.compare(added, -math.inf, "ne")
    return _Scores(a.add(values, a.where(allowed, added, 0)), allowed, hidden)


def _hidden(a: Algebra[V], values: V) -> V:
    """The weights of forbidden keys: 0, where −∞ added to the score is −∞."""
    return a.where(a.is_finite(values), a.full((), 0, values.dtype), math.nan)


def _greatest(a: Algebra[V], scores: _Scores[V]) -> V:
    """The greatest allowed score of each query; 0 where there is none."""
    last = (len(scores.values.shape) - 1,)
    if scores.allowed is None:
        return a.max(scores.values, last, keep=True)
    greatest = a.max(a.where(scores.allowed, scores.values, -math.inf), last, keep=True)
    return a.where(a.compare(greatest, -math.inf, "ne"), greatest, 0)


def _exponential(a: Algebra[V], scores: _Scores[V], shift: V, dtype: str) -> V:
    """e^(s − shift), and the weight of what is hidden where s is not allowed."""
    away = a.sub(scores.values, shift)
    if scores.allowed is None or scores.hidden is None:
        return a.exp(_known_within(a, away, FUSED_EXPONENTIAL[dtype]))
    away = a.where(scores.allowed, away, 0)
    return a.where(scores.allowed, a.exp(_known_within(a, away, FUSED_EXPONENTIAL[dtype])), scores.hidden)


def _known_within(a: Algebra[V], x: V, units: int) -> V:
    """`x` itself, with an error of that many units of roundoff: adds (0 + units) − units."""
    return a.add(x, a.sub(a.add(a.full((), 0, x.dtype), units), units))


def _narrowed(a: Algebra[V], x: V, dtype: str) -> V:
    """Matrix units read F16 and BF16, so a factor that was computed in F32 is rounded before a product."""
    return a.wide(a.cast(x, dtype))


def _scale(q: Typed, scale: float | None) -> float:
    number = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not math.isfinite(number):
        raise MalformedError(f"attention scaled by {number!r:.20}")
    return number


def _over(a: Algebra[V], x: V, y: V, of_x: int, of_y: int) -> V:
    """The product over one of the last two axes of each, one per index of the axes before."""
    count = len(x.shape)
    front = tuple(range(count - 2))
    return a.dot(x, y, ((count + of_x,), (count + of_y,)), (front, front))


def _over_queries(a: Algebra[V], x: V, y: V, heads: int) -> V:
    """[b,h,l,s] and [b,h,l,e] give [b,k,s,e]: the sum over the queries of all heads that share one of keys."""
    of_x, of_y = (a.reshape(z, (z.shape[0], heads, z.shape[1] * z.shape[2] // heads, z.shape[3])) for z in (x, y))
    return _over(a, of_x, of_y, -2, -2)


# ---- what fits together


def _aligned(a: Algebra[V], query: V, key: V, value: V, grouped: bool) -> tuple[V, V, V]:
    """Equal axes in front: broadcast, and with `grouped` queries each key and value head repeated."""
    tensors = [query, key, value]
    if any(len(tensor.shape) < (3 if grouped else 2) or tensor.dtype not in FLOATS for tensor in tensors):
        raise MalformedError("attention of tensors with too few axes, or of integers")
    if grouped:
        key, value = (_repeated(a, each, query.shape[-3]) for each in (key, value))
    front = broadcast_shapes([tensor.shape[:-2] for tensor in (query, key, value)])
    query, key, value = (a.broadcast(each, front + each.shape[-2:]) for each in (query, key, value))
    _check_sides(query, key, value)
    return query, key, value


def _repeated(a: Algebra[V], x: V, heads: int) -> V:
    *front, own, length, width = x.shape
    if own == 0 or heads % own:
        raise MalformedError(f"{heads} heads of queries over {own} heads of keys or values")
    wide = a.broadcast(a.reshape(x, (*front, own, 1, length, width)), (*front, own, heads // own, length, width))
    return a.reshape(wide, (*front, heads, length, width))


def _check_sides(query: Typed, key: Typed, value: Typed) -> None:
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2] or 0 in (query.shape[-1], key.shape[-2]):
        raise MalformedError(f"attention of {list(query.shape)}, {list(key.shape)} and {list(value.shape)}")


def _check_options(dropout_p: float, is_causal: bool, mask: Typed | None) -> None:
    if dropout_p != 0:
        raise MalformedError(f"attention with dropout {dropout_p!r:.20}: randomness has to be an input")
    if is_causal and mask is not None:
        raise MalformedError("attention with both a mask and is_causal")


def _check_flash(query: Typed, key: Typed, value: Typed, mask: Typed | None) -> None:
    tensors = (query, key, value)
    if any(len(tensor.shape) != 4 or tensor.dtype not in FLOATS for tensor in tensors):
        raise MalformedError("fused attention needs four axes of floats")
    heads, shared = query.shape[1], key.shape[1]
    fits = query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3] and shared and heads % shared == 0
    if key.shape != value.shape or not fits:
        raise MalformedError(f"fused attention of {', '.join(str(list(tensor.shape)) for tensor in tensors)}")
    _check_sides(query, key, value)
    if mask is not None and mask.dtype not in (query.dtype, "F32"):
        raise MalformedError(f"a {mask.dtype} mask for {query.dtype} attention")
