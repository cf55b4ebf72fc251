"""The `tokenizers` library: it trains byte-pair encoders, and encodes text exactly as this project's own encoder."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallystick.datasets.bpe import PIECES, split_pieces
from tallystick.datasets.tokenizer import BYTE_TOKENS, Merge, Tokenizer
from tallystick.errors import UsageError
from tallystick.transcripts.dataset import VOCABULARY_MAX

try:
    from tokenizers import Regex, Tokenizer as Pipeline, decoders, models, pre_tokenizers, trainers
except ModuleNotFoundError:
    from tallystick.extras import not_installed

    raise not_installed("tokenizers") from None

PAIR_TIMES_LEAST = 2


def train_bpe(text: str, vocabulary: int) -> Tokenizer:
    """Learn merges from `text` until there are `vocabulary` tokens, or until no pair occurs twice.

    Raises:
        UsageError: when the vocabulary is smaller than the 256 bytes, or larger than the format allows.
    """
    if not BYTE_TOKENS <= vocabulary <= VOCABULARY_MAX:
        raise UsageError(f"a vocabulary of {vocabulary} is not within {BYTE_TOKENS} to {VOCABULARY_MAX}")
    pipeline = Pipeline(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=PAIR_TIMES_LEAST,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pipeline.train_from_iterator(split_pieces(text), trainer)
    return Tokenizer("bpe", _read_merges(pipeline))


def encode_with_library(tokenizer: Tokenizer, text: str) -> NDArray[np.uint32]:
    """The tokens of `text` by the library, uint32[count]; equal to those of `encode_text`."""
    names = [_name(token) for token in tokenizer.tokens]
    merges = [(names[left], names[right]) for left, right in tokenizer.merges]
    vocabulary = {name: number for number, name in enumerate(names)}
    pipeline = Pipeline(models.BPE(vocab=vocabulary, merges=merges))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoded = pipeline.encode(list(split_pieces(text)), is_pretokenized=True)
    return np.array(encoded.ids, np.uint32)


def to_pipeline(tokenizer: Tokenizer) -> Any:
    """The tokenizer as a pipeline of the library, which encodes whole texts, decodes tokens and can be saved."""
    names = [_name(token) for token in tokenizer.tokens]
    merges = [(names[left], names[right]) for left, right in tokenizer.merges]
    pipeline = Pipeline(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=merges))
    pieces = pre_tokenizers.Split(Regex(PIECES), "isolated")
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(False, use_regex=False)])
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def _read_merges(pipeline: Any) -> tuple[Merge, ...]:
    """The learned merges as pairs of this project's token numbers: bytes first, then tokens in the order of merges."""
    model = json.loads(pipeline.to_str())["model"]
    numbers = {CHARACTERS[byte]: byte for byte in range(BYTE_TOKENS)}
    merges = []
    for left, right in model["merges"]:
        merges.append((numbers[left], numbers[right]))
        numbers.setdefault(left + right, len(numbers))
    return tuple(merges)


def _name(token: bytes) -> str:
    return "".join(CHARACTERS[byte] for byte in token)


def _byte_characters() -> list[str]:
    """The character with which the library writes each byte: itself if printable, else one from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printing else next(others)) for byte in range(BYTE_TOKENS)]


CHARACTERS = _byte_characters()
