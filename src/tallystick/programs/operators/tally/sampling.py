"""Random draws as pure functions, and how a token is chosen from logits by one."""

from __future__ import annotations

import math
from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.definition import Dtype, Family, Ints
from tallystick.programs.operators.precision import FORMATS
from tallystick.programs.operators.tally import fixed_point
from tallystick.programs.operators.tally.fixed_point import (
    FINITE,
    LOWEST,
    MASKED,
    NORMAL,
    SHARE_BITS,
    VOCABULARY_BITS,
    VOCABULARY_MAX,
    WORD_BITS,
    logit_scale,
    penalty_factors,
    share_of,
)
from tallystick.programs.random_words import MULTIPLIERS, ROUNDS, WEYL

# Random draws as pure functions: the seed is an operand, the place in the stream an attribute.
#
# Philox4x64-10 (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011, §3.3 and table 2) in integer
# operations alone, so that every engine draws the same bits. Element i takes word `offset` + i of the stream that
# `programs.random_words.words` defines. Words are stored as I64 with the bits of the unsigned word.

FAMILY = Family("tally")

WORD: Final = 64
LANES: Final = 4
WORDS_MAX: Final = 1 << 53


@FAMILY.exact("philox_uniform", "numbers of [0, 1) from the leading bits of Philox words")
def philox_uniform(a: Algebra[V], seed: V, offset: int, size: Ints, dtype: Dtype) -> V:
    """The leading 53, 24, 11 or 8 bits of each word over 2 to that power; every value is a float of `dtype`."""
    if dtype not in FLOATS:
        raise MalformedError(f"dtype is {dtype}, no float")
    bits = FORMATS[dtype].bits
    leading = _logical_right(a, _words(a, seed, offset, size), WORD - bits)
    return a.mul(a.cast(leading, dtype), 2.0**-bits)


@FAMILY.exact("dropout_mask", "1 with probability keep, else 0, from Philox words")
def dropout_mask(a: Algebra[V], seed: V, offset: int, size: Ints, keep: float, dtype: Dtype) -> V:
    """1 where the leading 53 bits of the word, over 2⁵³, are below `keep`."""
    if not 0.0 <= keep <= 1.0:
        raise MalformedError(f"keep is {keep!r:.40}, no probability")
    return a.cast(a.compare(philox_uniform(a, seed, offset, size, "F64"), keep, "lt"), dtype)


def _words(a: Algebra[V], seed: V, offset: int, size: tuple[int, ...]) -> V:
    """The words of a draw, I64 of shape `size`."""
    if (seed.dtype, tuple(seed.shape)) != ("I64", (2,)):
        raise MalformedError(f"seed is {seed.dtype}{list(seed.shape)}, not I64[2]")
    count = math.prod(size)
    if offset < 0 or min(size, default=1) < 0 or offset + count > WORDS_MAX:
        raise MalformedError(f"{count} words from word {offset} are outside the stream")
    if count == 0:
        return a.full(size, 0, "I64")
    first, skipped = divmod(offset, LANES)
    blocks = -(-(skipped + count) // LANES)
    counter = a.add(a.iota((blocks,), 0, "I64"), first)
    low, high = a.slice(seed, (0,), (1,), (1,)), a.slice(seed, (1,), (2,), (1,))
    lanes = [a.reshape(lane, (blocks, 1)) for lane in philox(a, counter, low, high)]
    stream = a.reshape(a.concat(lanes, 1), (blocks * LANES,))
    return a.reshape(a.slice(stream, (skipped,), (skipped + count,), (1,)), size)


def philox(a: Algebra[V], counter: V, low: V, high: V) -> tuple[V, V, V, V]:
    """Ten rounds over the counters (counter, 0, 0, 0) under the keys (low, high): four words each.

    The shape is that of the counter, to which keys broadcast, or of the keys.
    """
    zero = a.sub(counter, counter)
    c0, c1, c2, c3 = counter, zero, zero, zero
    for _ in range(ROUNDS):
        upper0, lower0 = _wide_product(a, c0, MULTIPLIERS[0])
        upper1, lower1 = _wide_product(a, c2, MULTIPLIERS[1])
        c0, c1 = _xor(a, _xor(a, upper1, c1), low), lower1
        c2, c3 = _xor(a, _xor(a, upper0, c3), high), lower0
        low, high = a.add(low, _signed(WEYL[0])), a.add(high, _signed(WEYL[1]))
    return c0, c1, c2, c3


def _wide_product(a: Algebra[V], x: V, factor: int) -> tuple[V, V]:
    """The upper and the lower 64 bits of the unsigned product, out of 32-bit halves."""
    high, low = factor >> 32, factor & 0xFFFFFFFF
    x_high, x_low = _logical_right(a, x, 32), _lower_half(a, x)
    one, other = a.mul(x_high, low), a.mul(x_low, high)
    carried = _logical_right(a, a.mul(x_low, low), 32)
    middle = a.add(a.add(carried, _lower_half(a, one)), _lower_half(a, other))
    outer = a.add(a.add(_logical_right(a, one, 32), _logical_right(a, other, 32)), _logical_right(a, middle, 32))
    return a.add(a.mul(x_high, high), outer), a.mul(x, _signed(factor))


def _xor(a: Algebra[V], x: V, y: V) -> V:
    shape = x.shape if math.prod(x.shape) >= math.prod(y.shape) else y.shape
    return a.logical_xor(a.broadcast(x, shape), a.broadcast(y, shape))


def _lower_half(a: Algebra[V], x: V) -> V:
    return a.logical_and(x, a.full(x.shape, 0xFFFFFFFF, "I64"))


def _logical_right(a: Algebra[V], x: V, places: int) -> V:
    return a.logical_and(a.shift_right(x, places), a.full(x.shape, (1 << (WORD - places)) - 1, "I64"))


def _signed(word: int) -> int:
    """The I64 that has the bits of an unsigned word."""
    return word - (1 << WORD) if word >> (WORD - 1) else word


# How a token is chosen from logits: penalty, temperature, top-k, top-p, min-p and one draw.
#
# Logits become *keys*: I64, the logarithm to base two of a token's weight relative to the heaviest, times 2³², rounded
# down once. All later steps use integers, so that the same logits give the same token on every engine. A masked token
# has the key `MASKED`; so has a token whose logit is −∞ or NaN. The axis of the vocabulary is the last.
#
# Filters are those of Fan et al. 2018 (top-k), Holtzman et al. 2020 (top-p), Nguyen et al. 2024 (min-p) and Keskar et
# al. 2019 (repetition penalty); the draw over keys is the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014).

PRODUCT_MAX: Final = 2.0**140
"""Above every product of an F32 logit and a factor of a penalty."""
LOWEST_FLOAT: Final = -float.fromhex("0x1.fffffffffffffp+1023")


@FAMILY.exact("repetition_penalty", "logits of tokens seen before, lowered")
def repetition_penalty(a: Algebra[V], logits: V, seen: V, penalty: float) -> V:
    """F64: where `seen`, l > 0 becomes l·(1 / penalty) and l ≤ 0 l·penalty; both factors are rounded to F32.

    A product of two F32 numbers is exact in F64.
    """
    if (seen.dtype, tuple(seen.shape)) != ("BOOL", tuple(logits.shape)):
        raise MalformedError(f"seen is {seen.dtype}{list(seen.shape)}, not BOOL{list(logits.shape)}")
    above, below = penalty_factors(penalty)
    x = plain_logits(a, logits)
    factor = a.where(a.compare(x, 0.0, "gt"), a.full(x.shape, above, "F64"), below)
    return a.where(seen, a.mul(x, factor), x)


@FAMILY.rounds("scale_logits", "fixed-point keys")
def scale_logits(a: Algebra[V], logits: V, temperature: float) -> V:
    """I64: ⌊(l − max l)·s⌋, s = log₂(e)·2³² / temperature in F64, at least `LOWEST`; temperature 0 counts as 1."""
    x = plain_logits(a, logits)
    is_out = a.compare(x, -math.inf, "eq")
    inside = a.where(is_out, LOWEST_FLOAT, x)
    distance = a.sub(inside, a.max(inside, (len(x.shape) - 1,), True))
    scaled = a.maximum(a.floor(a.mul(distance, logit_scale(temperature))), float(LOWEST))
    return a.where(is_out, MASKED, a.cast(scaled, "I64"))


@FAMILY.exact("keep_top_k", "the k largest keys, others masked")
def keep_top_k(a: Algebra[V], keys: V, k: int) -> V:
    """Of equal keys the first are kept; a `k` of 0, or of at least the size of the vocabulary, keeps all."""
    _check_keys(keys)
    if k < 0:
        raise MalformedError(f"k is {k}, less than 0")
    if k == 0 or k >= keys.shape[-1]:
        return keys
    ranks = _ranks(a, a.sort(keys, len(keys.shape) - 1, True)[1])
    return a.where(a.compare(ranks, k, "lt"), keys, MASKED)


@FAMILY.exact("keep_top_p", "the heaviest p of all weight")
def keep_top_p(a: Algebra[V], keys: V, p: float) -> V:
    """Keeps a token if the weights of heavier tokens, and of equal ones before it, sum to less than p of all weights.

    The heaviest token is always kept; `p` is rounded to 30 bits, and a `p` of 1 keeps all.
    """
    _check_keys(keys)
    share = share_of(p, "p")
    if share == 1 << SHARE_BITS:
        return keys
    axis = len(keys.shape) - 1
    weights, order = a.sort(fixed_point.exp2(a, keys), axis, True)
    before = a.sub(a.cumsum(weights, axis), weights)
    is_inside = a.compare(before, _part_of(a, a.sum(weights, (axis,), True), share), "lt")
    ranks = _ranks(a, order)
    is_kept = a.logical_or(a.take_along(is_inside, ranks, axis), a.compare(ranks, 0, "eq"))
    return a.where(is_kept, keys, MASKED)


@FAMILY.exact("keep_min_p", "what weighs p of the heaviest")
def keep_min_p(a: Algebra[V], keys: V, p: float) -> V:
    """Keeps the tokens with at least p times the largest weight; `p` is rounded to 30 bits."""
    _check_keys(keys)
    weights = fixed_point.exp2(a, keys)
    least = _part_of(a, a.max(weights, (len(keys.shape) - 1,), True), share_of(p, "p"))
    return a.where(a.compare(weights, least, "ge"), keys, MASKED)


@FAMILY.exact("softmax_weights", "2 to each key, in fixed point")
def softmax_weights(a: Algebra[V], keys: V) -> V:
    """I64: `fixed.exp2`; the weight of a masked token is 0. Probabilities are weights divided by their sum."""
    _check_keys(keys)
    return fixed_point.exp2(a, keys)


@FAMILY.exact("cumulative_weights", "running sums of weights")
def cumulative_weights(a: Algebra[V], weights: V) -> V:
    """I64, in the order of the vocabulary; integers add to the same in any order."""
    _check_keys(weights)
    return a.cumsum(weights, len(weights.shape) - 1)


@FAMILY.exact("select_token", "one draw by weight")
def select_token(a: Algebra[V], cumulative: V, seed: V, position: V) -> V:
    """I64: the first token whose running sum exceeds ⌊word·total / 2⁶²⌋, word the leading 62 bits of word 0 there.

    −1 if all weights are 0.
    """
    _check_keys(cumulative)
    axis, side = len(cumulative.shape) - 1, cumulative.shape[-1]
    starts, stops = [0] * axis + [side - 1], list(cumulative.shape)
    total = a.slice(cumulative, starts, stops, [1] * (axis + 1))
    word = _position_words(a, cumulative, seed, position, 1)
    threshold = _scaled(a, a.broadcast(_leading(a, word, WORD_BITS), total.shape), total)
    token = a.sum(a.cast(a.compare(cumulative, threshold, "le"), "I64"), (axis,))
    return a.where(a.compare(a.reshape(total, token.shape), 0, "gt"), token, -1)


@FAMILY.exact("add_gumbel_noise", "keys and their noise")
def add_gumbel_noise(a: Algebra[V], keys: V, seed: V, position: V) -> V:
    """Each key that is not masked plus `fixed.gumbel` of its word: the largest is a draw by weight."""
    _check_keys(keys)
    noise = fixed_point.gumbel(a, _position_words(a, keys, seed, position, keys.shape[-1]))
    is_out = a.compare(keys, MASKED, "eq")
    return a.where(is_out, keys, a.add(keys, a.broadcast(noise, keys.shape)))


@FAMILY.exact("select_largest", "the token of the largest key")
def select_largest(a: Algebra[V], keys: V) -> V:
    """I64: of equal keys the first; −1 where all are masked."""
    _check_keys(keys)
    axis = len(keys.shape) - 1
    return a.where(a.compare(a.max(keys, (axis,)), MASKED, "gt"), a.argmax(keys, axis), -1)


@FAMILY.exact("mark_token", "tokens seen, and one more")
def mark_token(a: Algebra[V], seen: V, token: V) -> V:
    """BOOL as `seen`, true also at `token`; −1 marks nothing."""
    if seen.dtype != "BOOL" or (token.dtype, tuple(token.shape)) != ("I64", tuple(seen.shape[:-1])):
        raise MalformedError(f"token {token.dtype}{list(token.shape)} of {seen.dtype}{list(seen.shape)}")
    axis = len(seen.shape) - 1
    index = a.iota(seen.shape, axis, "I64")
    column = a.reshape(token, (*token.shape, 1))
    return a.logical_or(seen, a.compare(index, a.broadcast(column, seen.shape), "eq"))


def plain_logits(a: Algebra[V], logits: V) -> V:
    """F64 without NaN, +∞ and numbers that some devices flush to 0."""
    if logits.dtype not in FLOATS or not logits.shape or not 1 <= logits.shape[-1] <= VOCABULARY_MAX:
        raise MalformedError(f"logits are {logits.dtype}{list(logits.shape)}, no floats over a vocabulary")
    x = a.cast(logits, "F64")
    x = a.minimum(a.where(a.compare(x, x, "eq"), x, -math.inf), PRODUCT_MAX if logits.dtype == "F64" else FINITE)
    return a.where(a.compare(a.abs(x), NORMAL, "lt"), 0.0, x)


def _check_keys(keys: V) -> None:
    if keys.dtype != "I64" or not keys.shape or not 1 <= keys.shape[-1] <= VOCABULARY_MAX:
        raise MalformedError(f"keys are {keys.dtype}{list(keys.shape)}, not I64 over a vocabulary")


def _ranks(a: Algebra[V], order: V) -> V:
    """Each token's place in `order`, from 0."""
    return a.sort(order, len(order.shape) - 1, False)[1]


def _part_of(a: Algebra[V], whole: V, share: int) -> V:
    """⌈whole·share / 2³⁰⌉ for 0 ≤ whole ≤ 2⁶⁰."""
    high = a.shift_right(whole, SHARE_BITS)
    low = a.sub(whole, a.mul(high, 1 << SHARE_BITS))
    rest = a.shift_right(a.add(a.mul(low, share), (1 << SHARE_BITS) - 1), SHARE_BITS)
    return a.add(a.mul(high, share), rest)


def _scaled(a: Algebra[V], word: V, total: V) -> V:
    """⌊word·total / 2⁶²⌋ for 0 ≤ word < 2⁶² and 0 ≤ total ≤ 2⁶⁰, out of 31-bit halves."""
    half = 1 << 31
    word_high, total_high = a.shift_right(word, 31), a.shift_right(total, 31)
    word_low, total_low = a.sub(word, a.mul(word_high, half)), a.sub(total, a.mul(total_high, half))
    carried = a.shift_right(a.mul(word_low, total_low), 31)
    middle = a.add(a.add(a.mul(word_high, total_low), a.mul(word_low, total_high)), carried)
    return a.add(a.mul(word_high, total_high), a.shift_right(middle, 31))


def _position_words(a: Algebra[V], keys: V, seed: V, position: V, count: int) -> V:
    """The first `count` words at each position: word position·2²⁰ + v of the stream of `seed`."""
    rows = tuple(keys.shape[:-1])
    if seed.dtype != "I64" or tuple(seed.shape) not in {(2,), (*rows, 2)}:
        raise MalformedError(f"seed is {seed.dtype}{list(seed.shape)}, not I64[2] or I64{[*rows, 2]}")
    if position.dtype != "I64" or tuple(position.shape) not in {(), rows}:
        raise MalformedError(f"position is {position.dtype}{list(position.shape)}, not I64[] or I64{list(rows)}")
    lead = tuple(position.shape) or tuple(seed.shape[:-1])
    blocks = -(-count // LANES)
    first = a.mul(a.reshape(position, (*position.shape, 1)), 1 << (VOCABULARY_BITS - 2))
    counter = a.add(a.iota((*lead, blocks), len(lead), "I64"), first)
    lanes = philox(a, counter, _column(a, seed, 0), _column(a, seed, 1))
    stream = a.concat([a.reshape(lane, (*lead, blocks, 1)) for lane in lanes], len(lead) + 1)
    words = a.reshape(stream, (*lead, blocks * LANES))
    return a.slice(words, [0] * (len(lead) + 1), [*lead, count], [1] * (len(lead) + 1))


def _column(a: Algebra[V], seed: V, place: int) -> V:
    lead = seed.shape[:-1]
    return a.slice(seed, [0] * len(lead) + [place], [*lead, place + 1], [1] * (len(lead) + 1))


def _leading(a: Algebra[V], word: V, bits: int) -> V:
    """The leading bits of an unsigned word."""
    kept = a.shift_right(word, 64 - bits)
    return a.where(a.compare(kept, 0, "lt"), a.add(kept, 1 << bits), kept)
