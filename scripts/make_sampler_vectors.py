#!/usr/bin/env python3
"""Write the test vectors of the sampler, computed from spec/sampler.md without the package and without NumPy.

Usage: python scripts/make_sampler_vectors.py vectors/sampler
"""

from __future__ import annotations

import json
import math
import random
import struct
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from make_data_vectors import MASK, MULTIPLIERS, WEYL, named

EXP2 = (1488522236, 515882500, 119194166, 20654619, 2863348, 332032, 32851)
LOG2 = (
    *(3098164010, -1549082014, 1032721259, -774539038, 619638058, -516475827),
    *(442535501, -384509593, 342122074, -337641402, 329537528, -181108485),
)
TAIL = (1549082007, 645450069, 387318997, 268876068, 216882270, 94776803, 305168180)
ONE = 1 << 32
PLAIN = {
    "form": "gumbel",
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": 0,
}
LARGEST = struct.unpack("<f", bytes.fromhex("ffff7f7f"))[0]
Key = int | None


def main() -> None:
    """Write one file per part of the page."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    made = {"fixed": fixed_cases(), "words": word_cases(), "choices": choice_cases(), "adjusted": adjusted_cases()}
    for name, cases in made.items():
        (folder / f"{name}.json").write_text(json.dumps(cases, indent=1, ensure_ascii=True) + "\n")


# ---- the page, in integers that cannot overflow
def polynomial(coefficients: tuple[int, ...], f: int) -> int:
    """Horner's rule; every product fits into 64 bits."""
    r = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        r = (bounded(r * f) >> 32) + coefficient
    return bounded(r * f)


def bounded(number: int) -> int:
    """A number that an I64 holds."""
    assert -(2**63) <= number < 2**63
    return number


def exp2(y: int) -> int:
    """A weight."""
    n = ((1 << 31) - y) >> 32
    return ((1 << 40) + (polynomial(EXP2, y + n * ONE) >> 23)) >> min(n, 62)


def log2(x: int) -> int:
    """A logarithm in units of 2^-32."""
    e = x.bit_length() - 1
    m = x << (62 - e)
    is_above = m > 6521908912666391106
    f = (m >> (31 if is_above else 30)) - ONE
    return (e + is_above) * ONE + (polynomial(LOG2, f) >> 31)


def noise(word: int) -> int:
    """The noise of a word."""
    v = 2 * (word >> 12) + 1
    if v >= 1 << 51:
        return 32 * ONE - log2(53 * ONE - log2((1 << 53) - v))
    return 53 * ONE - 2271034279 - (polynomial(TAIL, v >> 21) >> 31) - log2(v)


def stream_word(seed: int, index: int) -> int:
    """Word `index` of the stream of a seed."""
    key = bytes.fromhex(named("sampler", [seed]).removeprefix("sha256:"))
    c, k = [index // 4, 0, 0, 0], list(struct.unpack("<QQ", key[:16]))
    for _ in range(10):
        low, high = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = [high >> 64 ^ c[1] ^ k[0], high & MASK, low >> 64 ^ c[3] ^ k[1], low & MASK]
        k = [(k[0] + WEYL[0]) & MASK, (k[1] + WEYL[1]) & MASK]
    return c[index % 4]


def single(number: float) -> float:
    """The nearest binary32."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def plain(logit: float) -> float:
    """Step 1 of the page."""
    if math.isnan(logit):
        return -math.inf
    return 0.0 if abs(logit) < 2.0**-126 else min(logit, LARGEST)


def adjusted(row: list[float], sampler: dict[str, Any], position: int, history: list[int]) -> list[float]:
    """Step 2 of the page, on numbers after step 1."""
    answer = history[len(history) - position :]
    presence, frequency = (single(sampler.get(f"{name}_penalty", 0.0)) for name in ("presence", "frequency"))
    offsets = [0.0 - (frequency * answer.count(i) + presence) if i in answer else 0.0 for i in range(len(row))]
    for token, bias in sampler.get("logit_bias", ()):
        offsets[token] += single(bias)
    row = [plain(single(logit + offset)) if offset else logit for logit, offset in zip(row, offsets, strict=True)]
    allowed, bad = sampler.get("allowed_token_ids", ()), sampler.get("bad_token_ids", ())
    ends = sampler.get("end_token_ids", ()) if position < sampler.get("min_tokens", 0) else ()
    out = {i for i in range(len(row)) if (allowed and i not in allowed) or i in bad or i in ends}
    return [-math.inf if i in out else logit for i, logit in enumerate(row)]


def keys_of(logits: list[float], sampler: dict[str, Any], position: int, history: list[int]) -> list[Key]:
    """The keys of all tokens."""
    row = adjusted([plain(logit) for logit in logits], sampler, position, history)
    p = sampler["repetition_penalty"]
    if p != 1:
        for token in set(history):
            product = row[token] * single(1 / p if row[token] > 0 else p)
            row[token] = 0.0 if abs(product) < 2.0**-126 else product
    m = max(row)
    s = min(float.fromhex("0x1.71547652b82fep+32") / max(sampler["temperature"] or 1.0, 2.0**-100), 2.0**100)
    return [None if each == -math.inf else max(math.floor((each - m) * s), -(2**47)) for each in row]


def weight(key: Key) -> int:
    """The weight of a token that may be out."""
    return 0 if key is None else exp2(key)


def part(whole: int, p: float) -> int:
    """A share of a whole, rounded up."""
    return math.ceil(Fraction(whole * round(p * 2**30), 2**30))


def filtered(keys: list[Key], sampler: dict[str, Any]) -> list[Key]:
    """The keys of the tokens that stay."""
    k, p, everyone = sampler["top_k"], sampler["top_p"], range(len(keys))
    if 0 < k < len(keys):
        first = sorted(everyone, key=lambda i: (math.inf if keys[i] is None else -keys[i], i))[:k]
        keys = [key if i in first else None for i, key in enumerate(keys)]
    if round(p * 2**30) < 2**30:
        order = sorted(everyone, key=lambda i: (-weight(keys[i]), i))
        target = part(sum(map(weight, keys)), p)
        before = {i: sum(weight(keys[j]) for j in order[:place]) for place, i in enumerate(order)}
        keys = [key if before[i] < target or i == order[0] else None for i, key in enumerate(keys)]
    least = part(max(map(weight, keys)), sampler["min_p"])
    return [key if weight(key) >= least else None for key in keys]


def chosen(keys: list[Key], sampler: dict[str, Any], position: int) -> int | None:
    """The token, if one is left."""
    left = [i for i, key in enumerate(keys) if key is not None]
    if not left:
        return None
    words = {i: stream_word(sampler["seed"], (position << 20) + i) for i in {0, *left}}
    if sampler["form"] == "gumbel" or sampler["temperature"] == 0:
        drawn = {i: 0 if sampler["temperature"] == 0 else noise(words[i]) for i in left}
        return max(left, key=lambda i: (keys[i] + drawn[i], -i))
    weights = [weight(key) for key in keys]
    threshold = (words[0] >> 2) * sum(weights) >> 62
    return next(i for i in range(len(keys)) if sum(weights[: i + 1]) > threshold)


# ---- cases
def fixed_cases() -> dict[str, list[list[int | str]]]:
    """Values of the three functions, edges first."""
    drawn = random.Random(1)
    keys = [0, -1, -(2**31) + 1, -(2**31), -(2**31) - 1, -ONE, -ONE - 1, -40 * ONE, -41 * ONE, -(2**47)]
    keys += [-drawn.getrandbits(drawn.randint(20, 38)) for _ in range(30)]
    numbers = [1, 2, 3, 2**32, 2**53 - 1, 2**53 - 3, 2**62, 2**63 - 1, 6521908912666391106, 6521908912666391107]
    numbers += [drawn.getrandbits(drawn.randint(2, 63)) | 1 for _ in range(30)]
    words = [0, 2**12 - 1, 2**12, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
    words += [drawn.getrandbits(drawn.randint(13, 64)) for _ in range(30)]
    return {
        "exp2": [[key, exp2(key)] for key in keys],
        "log2": [[f"{number:016x}", log2(number)] for number in numbers],
        "noise": [[f"{word:016x}", noise(word)] for word in words],
    }


def word_cases() -> list[dict[str, Any]]:
    """Words by seed, position and vocabulary index."""
    places = [(0, 0, 0), (0, 0, 1), (7, 0, 5), (7, 1, 0), (2**53 - 1, 3, 50256), (1, 2**40 - 1, 2**20 - 1)]
    return [
        {
            "seed": seed,
            "position": position,
            "token": token,
            "word": f"{stream_word(seed, (position << 20) + token):016x}",
        }
        for seed, position, token in places
    ]


def choice(logits: list[float], position: int = 0, history: tuple[int, ...] = (), **settings: Any) -> dict[str, Any]:
    """One case: what goes in, the keys before and after the filters, and the token."""
    sampler = {**PLAIN, **settings}
    keys = keys_of(logits, sampler, position, list(history))
    is_greedy = sampler["temperature"] == 0
    left = keys if is_greedy or not any(key is not None for key in keys) else filtered(keys, sampler)
    return {
        "logits": [shown(logit) for logit in logits],
        "sampler": sampler,
        "position": position,
        "history": list(history),
        "keys": keys,
        "kept": [key is not None for key in left],
        "token": chosen(left, sampler, position),
    }


def shown(logit: float) -> float | str:
    """JSON has no NaN and no infinities."""
    return "nan" if math.isnan(logit) else ("inf" if logit > 0 else "-inf") if math.isinf(logit) else logit


def choice_cases() -> list[dict[str, Any]]:
    """Every setting in both forms, then the edges."""
    drawn = random.Random(2)
    flat = [single(drawn.gauss(0, 1)) for _ in range(24)]
    steep = [single(drawn.gauss(0, 5)) for _ in range(24)]
    tied = [1.0, 2.0, 2.0, 0.5, 2.0, 0.5, -1.0, 2.0]
    return [*ordinary(flat, steep), *at_edges(flat, tied), *not_numbers(), *large(drawn)]


def adjusted_cases() -> list[dict[str, Any]]:
    """Every adjustment in both forms, all together, and their edges."""
    drawn = random.Random(3)
    flat = [single(drawn.gauss(0, 1)) for _ in range(24)]
    past, bias = (1, 3, 3, 8, 8, 8, 20), [[0, 1.5], [3, -2.25], [7, 100.0], [20, -100.0]]
    every: dict[str, Any] = {"presence_penalty": 0.7, "frequency_penalty": 0.3, "logit_bias": bias[:2]}
    every |= {"allowed_token_ids": [*range(20)], "bad_token_ids": [0, 5], "min_tokens": 6, "end_token_ids": [8, 9]}
    settings: list[dict[str, Any]] = [
        *({"presence_penalty": 0.6}, {"frequency_penalty": 0.4}, {"presence_penalty": -2.0, "frequency_penalty": 2.0}),
        *({"logit_bias": bias}, {"logit_bias": [[8, 1e-40]]}, {"allowed_token_ids": [2, 3, 8, 21]}),
        *({"bad_token_ids": [1, 3, 8]}, {"min_tokens": 5, "end_token_ids": [3, 8]}, every),
        {**every, "repetition_penalty": 1.3, "temperature": 0.8, "top_k": 6, "top_p": 0.9},
        *({"min_tokens": 6, "end_token_ids": [8]}, {"presence_penalty": 1.0, "temperature": 0.0}),
    ]
    found = [
        choice(flat, 5, past, form=form, seed=number, **each)
        for number, each in enumerate(settings)
        for form in ("gumbel", "cdf")
    ]
    odd = [math.nan, math.inf, -math.inf, LARGEST, -LARGEST, 2.0**-149]
    found += [
        choice(odd, 6, (0, 1, 2, 3, 4, 5), logit_bias=[[0, 1.0], [3, 100.0]], presence_penalty=p) for p in (0.5, -1)
    ]
    found += [choice([0.0, 0.0, 0.0], 0, (1,), presence_penalty=2.0, seed=number) for number in range(2)]
    return [*found, choice([0.0, 1.0, 2.0], 0, allowed_token_ids=[1]), choice([0.0, 1.0], 0, bad_token_ids=[0, 1])]


def ordinary(flat: list[float], steep: list[float]) -> list[dict[str, Any]]:
    """Settings as they are used."""
    settings: list[dict[str, Any]] = [
        *({}, {"temperature": 0.7}, {"temperature": 1000.0}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}),
        *({"repetition_penalty": 1.3}, {"repetition_penalty": 0.5}),
        {"temperature": 0.8, "top_k": 12, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.1},
    ]
    return [
        choice(logits, position, (1, 3, 3, 8), form=form, seed=number, **each)
        for number, each in enumerate(settings)
        for form in ("gumbel", "cdf")
        for logits, position in ((flat, number), (steep, 1000 * number))
    ]


def at_edges(flat: list[float], tied: list[float]) -> list[dict[str, Any]]:
    """Settings at the ends of their ranges, ties, one token."""
    found = [choice(tied, position, temperature=0.0, top_k=1) for position in (0, 9)]
    found.append(choice([-1.0, 2.0, 3.0], history=(2,), temperature=0.0, repetition_penalty=2.0))
    for form in ("gumbel", "cdf"):
        found += [choice(tied, 3, form=form, top_k=k) for k in (1, 2, 3, 5, 8, 9, 2**53 - 1)]
        found += [choice(tied, 4, form=form, top_p=p) for p in (0.0, 1e-12, 0.25, 0.5, 0.999, 1.0 - 2.0**-40, 1.0)]
        found += [choice(tied, 5, form=form, min_p=p) for p in (0.0, 0.25, 0.5, 1.0)]
        found += [choice(flat, 6, form=form, temperature=t) for t in (5e-324, 1e-30, 1e-3, 1000.0)]
        found += [choice([-7.5], 7, form=form, top_k=3, top_p=0.0), choice([0.0] * 5, 2**40 - 1, form=form)]
        found += [choice(flat, 8, (0, 1, 2), form=form, repetition_penalty=p) for p in (0.01, 100.0)]
    return found


def not_numbers() -> list[dict[str, Any]]:
    """NaN, infinities, nothing left, numbers that some processors flush."""
    nan, inf = math.nan, math.inf
    rows = [
        *([nan, 1.0, 2.0], [inf, 1.0, inf], [-inf, 1.0, -inf], [-inf, -inf], [nan, nan, -inf], [inf, nan, -inf]),
        *([LARGEST, inf, -LARGEST], [0.0, -0.0, 2.0**-149, -(2.0**-149)], [-(2.0**-126), 0.0, 2.0**-126]),
    ]
    settings: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"form": "cdf", "top_k": 2, "top_p": 0.5}]
    found = [choice(row, 11, **each) for row in rows for each in settings]
    tiny = [single(2.0**-125), single(1.5 * 2.0**-126), 0.0]
    return [*found, *(choice(tiny, 12, (0, 1), temperature=t, repetition_penalty=2.0) for t in (0.0, 1e-30))]


def large(drawn: random.Random) -> list[dict[str, Any]]:
    """A vocabulary of some hundred tokens, several positions."""
    logits = [single(drawn.gauss(0, 3)) for _ in range(384)]
    return [choice(logits, position, form=form, seed=5) for form in ("gumbel", "cdf") for position in range(4)]


if __name__ == "__main__":
    main()
