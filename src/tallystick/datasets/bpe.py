"""Turning text into tokens and back, by the definition of the tokenizer alone."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tallystick.datasets.tokenizer import PIECE_CHARACTERS, Merge, Tokenizer, TokenizerKind
from tallystick.datasets.tokens import Tokens, token_dtype
from tallystick.errors import MalformedError, UsageError

TrainBpe = Callable[[str, int], Tokenizer]
"""Trains a tokenizer on a text, with at most so many tokens."""

SPACE: Final = r"\t-\r "
LETTER: Final = "A-Za-z\u0080-\U0010ffff"
RUN: Final = f"{{1,{PIECE_CHARACTERS}}}"
PIECES: Final = "|".join(
    (
        f" ?[{LETTER}]{RUN}",
        f" ?[0-9]{RUN}",
        f" ?[^{SPACE}{LETTER}0-9]{RUN}",
        f"[{SPACE}]{RUN}(?![^{SPACE}])",  # the last space before a word belongs to the word
        f"[{SPACE}]{RUN}",
    )
)
_FIND_PIECES: Final = re.compile(PIECES)
CACHED_PIECES_MAX: Final = 1 << 20


def split_pieces(text: str) -> Iterator[str]:
    r"""The pieces of `text` in order; tokens never reach over the edge of a piece.

    >>> list(split_pieces("def f(x1):\n    pass"))
    ['def', ' f', '(', 'x', '1', '):', '\n   ', ' pass']
    """
    return (match.group() for match in _FIND_PIECES.finditer(text))


def make_tokenizer(corpus: str, kind: TokenizerKind, vocabulary: int, train_bpe: TrainBpe | None) -> Tokenizer:
    """The tokenizer of a corpus: single bytes, or what `train_bpe` learns from it; raises `UsageError` without one."""
    if kind == "bytes":
        return Tokenizer("bytes")
    if train_bpe is None:
        raise UsageError("byte-pair encoding needs something that trains it")
    return train_bpe(corpus, vocabulary)


def tokenize(tokenizer: Tokenizer, corpus: str) -> Tokens:
    """The tokens of `corpus` in the dtype of the tokenizer's vocabulary."""
    return encode_text(tokenizer, corpus).astype(token_dtype(tokenizer.vocabulary))


def encode_text(tokenizer: Tokenizer, text: str) -> NDArray[np.uint32]:
    """The tokens of `text`, uint32[count]: byte-pair encoding (Sennrich et al. 2016, §3.2) of each piece."""
    if tokenizer.kind == "bytes":
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
    known: dict[str, list[int]] = {}
    tokens = array("I")
    for piece in split_pieces(text):
        if piece not in known:
            if len(known) >= CACHED_PIECES_MAX:
                known.clear()
            known[piece] = merge_piece(tokenizer.ranks, piece.encode())
        tokens.extend(known[piece])
    return np.frombuffer(tokens, np.uint32)


def merge_piece(ranks: dict[Merge, tuple[int, int]], piece: bytes) -> list[int]:
    """The tokens of one piece: the most urgent merge, the leftmost of equals, until none is left."""
    tokens = list(piece)
    while found := [(ranks[pair], at) for at, pair in enumerate(pairwise(tokens)) if pair in ranks]:
        (_, made), at = min(found)
        tokens[at : at + 2] = [made]
    return tokens


def decode_tokens(tokenizer: Tokenizer, tokens: Iterable[int]) -> bytes:
    """The bytes that `tokens` stand for; raises `MalformedError` for one outside the vocabulary."""
    table = tokenizer.tokens
    listed = list(tokens)
    if any(not 0 <= token < len(table) for token in listed):
        raise MalformedError(f"token outside the vocabulary of {len(table)}")
    return b"".join(table[token] for token in listed)
