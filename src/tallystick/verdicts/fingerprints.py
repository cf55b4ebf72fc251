"""Fingerprints of hidden states: the wire form made, and its distance from a verifier's own rows."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.formats import fingerprints
from tallystick.formats.fingerprints import (
    HALF_OCTAVE,
    PUBLIC_SEED,
    ZERO,
    Array,
    Bytes,
    Distance,
    FingerprintSettings,
    Numbers,
    Rows,
    SignedGaps,
    blocks_of,
    grid_steps,
    rows_of,
)
from tallystick.formats.receipt import Fingerprint
from tallystick.programs.random_words import sample, words
from tallystick.verdicts import toploc
from tallystick.verdicts.language_model import Prefill

# The random signs of a projection, from Philox: the same on every machine and in every framework.

Signs = npt.NDArray[np.int8]


@lru_cache(maxsize=64)
def direction_signs(seed: str, layer: int, width: int, size: int) -> Signs:
    """The directions of a layer: ±1 of shape [size, width]; row j has the signs of hidden dimension j.

    Bit `j · width + k` of the Philox words under the digest of `["direction", layer, seed, width]`; a set bit is −1.
    """
    return _signs(["direction", layer, seed, width], 0, size * width).reshape(size, width)


@lru_cache(maxsize=64)
def position_signs(seed: str, layer: int, width: int, first: int, count: int) -> Signs:
    """The signs of answer tokens `first` to `first + count − 1` in a layer: ±1 of shape [count, width].

    Bit `i · width + k` of the words under the digest of `["position", layer, seed, width]` is for token i.
    """
    return _signs(["position", layer, seed, width], first * width, count * width).reshape(count, width)


def _signs(key: list[str | int], start: int, count: int) -> Signs:
    """The signs of `count` bits from bit `start` on of the Philox words under `key`; read-only, as it is cached."""
    first, skipped = divmod(start, 64)
    drawn = words(digest_bytes(digest("directions", encode([*key]))), -(-(skipped + count) // 64), first)
    bits = np.unpackbits(drawn.astype("<u8", copy=False).view(np.uint8), count=skipped + count, bitorder="little")
    signs = 1 - 2 * bits[skipped:].astype(np.int8)
    signs.flags.writeable = False
    return signs


# The projection of a block of hidden states under random signs: a few numbers that depend on every dimension.
#
# For a block of tokens and a layer, number k is Σᵢ σᵢₖ Σⱼ rⱼₖ hᵢⱼ over tokens i and hidden dimensions j. The signs r
# depend on the layer, the signs σ on the position of a token in the answer. With H the block's hidden states, E[s²] =
# ‖H‖² (Johnson and Lindenstrauss 1984; signs: Achlioptas 2003). So a difference ΔH shows as about ‖ΔH‖ in every number.
#
# The numbers are linear in the hidden states: no hidden state is clipped, normalised or left out. A larger dimension
# weighs more, and its honest rounding is larger in the same proportion.


def summarise(rows: Array, layer: int, settings: FingerprintSettings) -> Numbers:
    """The numbers of every block of a layer's rows [tokens, d]: [blocks, width], in float64."""
    tokens, size = rows.shape
    assert settings.seed is not None
    directions = direction_signs(settings.seed, layer, settings.width, size)
    signed = rows.astype(np.float64) @ directions.astype(np.float64)
    signed *= position_signs(settings.seed, layer, settings.width, 0, tokens)
    return np.add.reduceat(signed, np.arange(0, tokens, settings.block), axis=0)


def block_norms(rows: Array, block: int) -> Numbers:
    """The Euclidean norm of every block of rows [tokens, d]: [blocks], in float64."""
    wide = rows.astype(np.float64)
    squares = np.einsum("ij,ij->i", wide, wide)
    return np.sqrt(np.add.reduceat(squares, np.arange(0, len(rows), block)))


# The logits as a layer of a fingerprint, behind the final norm: a sample of them, less its mean.
#
# Logits are far wider than hidden states, so a fingerprint takes entries of the vocabulary that its seed draws. What is
# common to all logits of a row changes no probability, and would drown the differences that do: it is taken off.

ENTRIES_MAX: Final = 1024
LogitRows: TypeAlias = npt.NDArray[np.floating[Any]]


def logit_rows(logits: LogitRows, seed: str) -> LogitRows:
    """The rows of the layer from logits F32 [tokens, V] as the model gave them: F32 [tokens, sampled entries]."""
    drawn = np.take(logits, logit_entries(seed, logits.shape[1]), axis=1)
    return np.asarray(drawn - drawn.mean(axis=1, keepdims=True))


@lru_cache(maxsize=64)
def logit_entries(seed: str, vocabulary: int) -> npt.NDArray[np.int64]:
    """The sampled entries of a vocabulary, int64 [at most `ENTRIES_MAX`], ascending; all of a small vocabulary.

    The sample by Philox under the digest of `["logits", seed]`.
    """
    key = digest_bytes(digest("directions", encode(["logits", seed])))
    drawn = sample(key, vocabulary, min(vocabulary, ENTRIES_MAX))
    drawn.flags.writeable = False
    return drawn


# Encodes hidden states as the wire form of a fingerprint.

EXPONENT_MAX: Final = 127


def encode_rows(rows: Rows, settings: FingerprintSettings) -> bytes:
    """The wire form of rows [tokens, d] of every layer in `settings`: by block, and inside a block by layer.

    Raises:
        MalformedError: a layer is missing, or the layers differ in their number of tokens.
        UnavailableError: a hidden state is not finite or too large.
    """
    checked = rows_of(rows, settings.layers)
    if settings.method == "toploc":
        return b"".join(toploc.encode_block(block, settings.width) for block in blocks_of(checked, settings))
    summaries = np.stack([summarise(checked[layer], layer, settings) for layer in settings.layers])
    norms = np.stack([block_norms(checked[layer], settings.block) for layer in settings.layers])
    return encode_summaries(summaries, norms, settings)


def encode_summaries(summaries: Numbers, norms: Numbers, settings: FingerprintSettings) -> bytes:
    """The wire form of a projection's numbers [layers, blocks, width] and the norms [layers, blocks] of the blocks."""
    in_order = summaries.transpose(1, 0, 2).reshape(-1, settings.width)
    return encode_numbers(in_order, norms.T.reshape(-1), settings.bits, settings.resolution).tobytes()


def encode_numbers(numbers: Numbers, norms: Numbers, bits: int, grid: int) -> Bytes:
    """The wire form of numbers [blocks, width] with the norms [blocks] of their hidden states: [blocks, bytes].

    Raises `UnavailableError` for numbers that are not finite or too large.
    """
    with np.errstate(over="ignore"):
        narrow = numbers.astype("<f4")
    if not np.isfinite(narrow).all() or not np.isfinite(norms).all():
        raise UnavailableError("hidden states: not finite, or too large for a fingerprint")
    if bits == 32:
        return narrow.view(np.uint8)
    mantissas, powers = np.frexp(norms)
    exponents = powers.astype(np.int64) - (mantissas < HALF_OCTAVE)  # log₂ of the norms, rounded
    if (exponents > EXPONENT_MAX).any():
        raise UnavailableError("hidden states: too large for a fingerprint")
    exponents = np.where((norms == 0.0) | (exponents <= ZERO), ZERO, exponents)
    codes = np.where(exponents[:, None] == ZERO, 0.0, np.floor(numbers / grid_steps(exponents, grid)))
    residues = np.mod(codes, 2**bits).astype(np.uint8)
    return np.concatenate([exponents.astype(np.int8).view(np.uint8)[:, None], _pack(residues, bits)], axis=1)


def _pack(residues: Bytes, bits: int) -> Bytes:
    if bits == 8:
        return residues
    if bits == 1:
        return np.packbits(residues, axis=1, bitorder="little")
    nibbles = np.pad(residues, ((0, 0), (0, residues.shape[1] % 2)))
    return np.asarray(nibbles[:, ::2] | nibbles[:, 1::2] << 4, np.uint8)


# The size of a fingerprint's wire form, and its distance from a verifier's own rows by block and layer.


def measure(data: bytes, rows: Rows, settings: FingerprintSettings) -> tuple[Distance, ...]:
    """How far the verifier's rows [tokens, d] lie from a claimed wire form, by block and inside a block by layer.

    Raises:
        MalformedError: the bytes are not a fingerprint of that many tokens.
        UnavailableError: the verifier's own hidden states are not finite.
    """
    checked = _rows_of_size(data, rows, settings)
    if settings.method == "toploc":
        return tuple(toploc.compare(data, checked, settings))
    gaps = [
        fingerprints.relative_gaps(
            coded,
            summarise(checked[layer], layer, settings),
            block_norms(checked[layer], settings.block),
            settings.bits,
            settings.resolution,
        )
        for layer, coded in _coded_by_layer(data, settings)
    ]
    return tuple(
        Distance(layer, first, count, float(gaps[n][block]))
        for block, (first, count) in enumerate(settings.spans(len(checked[settings.layers[0]])))
        for n, layer in enumerate(settings.layers)
    )


def residuals(data: bytes, rows: Rows, settings: FingerprintSettings) -> dict[int, SignedGaps]:
    """By layer, how far the claimed numbers of a projection lie from those of the rows, with their sign.

    Raises as `measure`; the bytes are those of a projection of 8 bits or fewer.
    """
    checked = _rows_of_size(data, rows, settings)
    return {
        layer: fingerprints.signed_gaps(
            coded, summarise(checked[layer], layer, settings), settings.bits, settings.resolution
        )
        for layer, coded in _coded_by_layer(data, settings)
    }


def _rows_of_size(data: bytes, rows: Rows, settings: FingerprintSettings) -> Rows:
    """The rows of the layers; raises `MalformedError` unless the wire form is as long as that many tokens take."""
    checked = rows_of(rows, settings.layers)
    tokens, size = checked[settings.layers[0]].shape
    needed = wire_bytes(tokens, size, settings)
    if len(data) != needed:
        raise MalformedError(f"fingerprint.data: {len(data)} bytes; {tokens} tokens take {needed}")
    return checked


def _coded_by_layer(data: bytes, settings: FingerprintSettings) -> Iterator[tuple[int, Bytes]]:
    """The layers, each with the bytes that a projection's wire form has for its blocks: [blocks, bytes]."""
    part = fingerprints.block_bytes(settings.width, settings.bits)
    coded = np.frombuffer(data, np.uint8).reshape(-1, len(settings.layers), part)
    for n, layer in enumerate(settings.layers):
        yield layer, coded[:, n]


def wire_bytes(tokens: int, size: int, settings: FingerprintSettings) -> int:
    """The bytes that `tokens` tokens of hidden width `size` take."""
    if settings.method == "toploc":
        counts = [min(settings.width, count * size) for _, count in settings.spans(tokens)]
        return len(settings.layers) * sum(map(toploc.block_bytes, counts))
    return settings.blocks(tokens) * len(settings.layers) * fingerprints.block_bytes(settings.width, settings.bits)


# A fingerprint as it stands in a receipt: made from hidden states, and compared with a verifier's own.


def make_fingerprint(rows: Rows, settings: FingerprintSettings) -> Fingerprint:
    """The fingerprint of answer tokens, from the hidden states they were chosen from, [tokens, d] by layer.

    Raises:
        MalformedError: a layer is not there, or their numbers of tokens differ.
        UnavailableError: a hidden state is not finite or too large.
    """
    return fingerprint_of(encode_rows(rows, settings), len(rows[settings.layers[0]]), settings)


def fingerprint_of(data: bytes, tokens: int, settings: FingerprintSettings) -> Fingerprint:
    """The document around a wire form."""
    return Fingerprint(**asdict(settings), tokens=tokens, data=base64.b64encode(data).decode())


def settings_of(fingerprint: Fingerprint) -> FingerprintSettings:
    """What a claimed fingerprint was made with; raises `MalformedError` naming the field that cannot be."""
    try:
        return FingerprintSettings(
            fingerprint.method,
            fingerprint.layers,
            fingerprint.block,
            fingerprint.width,
            fingerprint.bits,
            fingerprint.seed,
            fingerprint.grid,
        )
    except UsageError as error:
        raise MalformedError(f"fingerprint.{error}") from None


def rows_for(fingerprint: Fingerprint, passed: Prefill, final: int) -> Rows:
    """The verifier's own rows [tokens, d] of a fingerprint, by layer, from a pass whose last rows are the answer's.

    `final` is the layer number of the final norm. The layer behind it is the logits, by the fingerprint's seed; for a
    fingerprint without a seed, by the public one.
    """
    rows = {layer: states[-fingerprint.tokens :] for layer, states in passed.hidden.items()}
    if final + 1 in fingerprint.layers:
        rows[final + 1] = logit_rows(passed.logits[-fingerprint.tokens :], fingerprint.seed or PUBLIC_SEED)
    return rows


def distances(fingerprint: Fingerprint, rows: Rows) -> tuple[Distance, ...]:
    """How far the verifier's own rows [tokens, d] lie from a claimed fingerprint, block by block and layer by layer.

    Raises:
        MalformedError: the fingerprint is malformed, or of another number of tokens.
        UnavailableError: the verifier's own hidden states are not finite.
    """
    settings = settings_of(fingerprint)
    counts = {len(rows[layer]) for layer in settings.layers if layer in rows}
    if counts != {fingerprint.tokens}:
        raise MalformedError(f"fingerprint.tokens: {fingerprint.tokens}, and the answer has {sorted(counts)}")
    return measure(fingerprint.raw, rows, settings)
