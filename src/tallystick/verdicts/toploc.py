"""TOPLOC (Ong et al. 2025, arXiv 2501.16007): a polynomial through the largest values of a block of hidden states.

The hidden states of a block are flattened and rounded to bfloat16; the k values of largest magnitude are taken. Under
the chosen modulus no two of their indices are equal. The polynomial of degree k − 1 over GF(65497) has P(index mod
modulus) = bfloat16 bits. The wire form is the modulus and the coefficients, lowest degree first, each two bytes,
big-endian. The verifier evaluates the polynomial at the indices of its own largest values, and compares exponents and
mantissas.

TOPLOC does not see the sign of a value, nor any value but the largest. This is an implementation from the description.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import round_to_bfloat16
from tallystick.formats.fingerprints import Array, Distance, FingerprintSettings, Rows, blocks_of

PRIME: Final = 65497
MODULUS_MIN: Final = 1 << 15
"""The published builder searches for a modulus above this number only."""
MANTISSA_BITS: Final = 7
NUMBER_BYTES: Final = 2
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mismatch:
    """How own values differ from those of a congruence.

    Of `of` values, `exponents` differ in the exponent. Mantissa differences are over the others; infinite without any.
    """

    exponents: int
    of: int
    mantissa_mean: float
    mantissa_median: float


def encode_block(rows: Array, values: int) -> bytes:
    """The congruence of the `values` largest of a block [tokens, d], or of all if there are fewer.

    Raises `UnavailableError` if no modulus keeps the indices apart.
    """
    indices, bits = largest_values(rows, values)
    modulus = injective_modulus(indices)
    coefficients = interpolate(indices % modulus, bits)
    return np.concatenate([[modulus], coefficients]).astype(">u2").tobytes()


def compare(data: bytes, rows: Rows, settings: FingerprintSettings) -> Iterator[Distance]:
    """How far the blocks of `rows` lie from claimed congruences; raises `MalformedError` for malformed bytes."""
    places = [(layer, *span) for span in settings.spans(len(rows[settings.layers[0]])) for layer in settings.layers]
    start = 0
    for (layer, first, count), block in zip(places, blocks_of(rows, settings), strict=True):
        values = min(settings.width, block.size)
        end = start + block_bytes(values)
        mismatch = compare_block(*parse_block(data[start:end], values), block)
        share = mismatch.exponents / mismatch.of
        yield Distance(layer, first, count, share, mismatch.mantissa_mean, mismatch.mantissa_median)
        start = end


def parse_block(data: bytes, values: int) -> tuple[int, Integers]:
    """The congruence of a block of `values` values: its modulus, and coefficients from the lowest degree up.

    Raises `MalformedError` for malformed bytes.
    """
    if len(data) != block_bytes(values):
        raise MalformedError(f"fingerprint.data: {len(data)} bytes for a congruence of {values} values")
    numbers = np.frombuffer(data, ">u2").astype(np.int64)
    if not MODULUS_MIN < numbers[0] <= PRIME:
        raise MalformedError(f"fingerprint.data: modulus {numbers[0]} is not from {MODULUS_MIN + 1} to {PRIME}")
    if (numbers[1:] >= PRIME).any():
        raise MalformedError(f"fingerprint.data: a coefficient of {PRIME} or more")
    return int(numbers[0]), numbers[1:]


def compare_block(modulus: int, coefficients: Integers, rows: Array) -> Mismatch:
    """Compare the claimed polynomial, at the indices of the block's own largest values, with these values."""
    indices, own = largest_values(rows, len(coefficients))
    evaluated = evaluate(coefficients, indices % modulus)
    agrees = ((evaluated ^ own) >> MANTISSA_BITS & 0xFF) == 0  # the exponents
    gaps = np.abs((evaluated & 0x7F) - (own & 0x7F))[agrees]
    mean, median = (float(gaps.mean()), float(np.median(gaps))) if gaps.size else (np.inf, np.inf)
    return Mismatch(int((~agrees).sum()), len(own), mean, median)


def block_bytes(values: int) -> int:
    """The bytes of a congruence of `values` values: 258 for 128."""
    return NUMBER_BYTES * (1 + values)


def largest_values(rows: Array, values: int) -> tuple[Integers, Integers]:
    """Indices in the flattened block, and bfloat16 bits, of its values of largest magnitude; ties go to the first."""
    bits = round_to_bfloat16(rows.astype(np.float32).reshape(-1)).astype(np.int64)
    order = np.argsort(-(bits & 0x7FFF), kind="stable")[:values]
    return order.astype(np.int64), bits[order]


def injective_modulus(indices: Integers) -> int:
    """The largest modulus up to the prime that keeps all indices distinct; raises `UnavailableError` for none."""
    for modulus in range(PRIME, MODULUS_MIN, -1):
        if len(np.unique(indices % modulus)) == len(indices):
            return modulus
    raise UnavailableError("fingerprint: no modulus keeps the indices of the largest values apart")


def interpolate(points: Integers, values: Integers) -> Integers:
    """The coefficients, lowest degree first, of the polynomial through distinct points: divided differences."""
    differences = values % PRIME
    for order in range(1, len(points)):
        spans = (points[order:] - points[:-order]) % PRIME
        differences[order:] = (differences[order:] - differences[order - 1 : -1]) * _inverses()[spans] % PRIME
    coefficients = np.zeros_like(differences)
    for place in range(len(points) - 1, -1, -1):
        shifted = np.concatenate([[0], coefficients[:-1]])
        coefficients = (shifted - points[place] * coefficients) % PRIME
        coefficients[0] = (coefficients[0] + differences[place]) % PRIME
    return coefficients


def evaluate(coefficients: Integers, points: Integers) -> Integers:
    """The polynomial at every point, by Horner's rule."""
    values = np.zeros_like(points)
    for coefficient in coefficients[::-1]:
        values = (values * points + coefficient) % PRIME
    return values


@cache
def _inverses() -> Integers:
    """The inverse of every number modulo the prime, x^(p − 2) by Fermat's theorem; entry 0 is never used."""
    power, exponent = np.arange(PRIME, dtype=np.int64), PRIME - 2
    result = np.ones_like(power)
    while exponent:
        if exponent & 1:
            result = result * power % PRIME
        power, exponent = power * power % PRIME, exponent >> 1
    return result
