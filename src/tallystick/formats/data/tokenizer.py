"""Tokens in binary files, and tokenizers: bytes or byte-pair encoding, defined by a few lines of JSON."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tallystick.core.digests import Hash, leaf_hash, tree_root
from tallystick.core.documents import Count, Document
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.files import file_size, write_atomically
from tallystick.formats.dataset import CHUNK_BYTES, VOCABULARY_MAX, TokensCommit

# Tokens in a binary file: 24 bytes of header, then little-endian integers, under a root of their own.
#
#     8 bytes   tallytk1
#     8 bytes   size of the vocabulary, little-endian
#     8 bytes   number of tokens, little-endian
#     the rest  tokens of 2 bytes where the vocabulary has at most 65,536 entries, of 4 bytes otherwise
#
# See `spec/tokens.md`.

MAGIC: Final = b"tallytk1"
HEADER: Final = struct.Struct("<8sQQ")
Tokens = NDArray[np.unsignedinteger[Any]]


def token_dtype(vocabulary: int) -> np.dtype[Any]:
    """The narrowest of uint16 and uint32 that holds every token, little-endian."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def encode_tokens(tokens: NDArray[np.integer[Any]], vocabulary: int) -> bytes:
    """The content of `tokens.bin` for tokens below `vocabulary`."""
    assert not tokens.size or 0 <= tokens.min() <= tokens.max() < vocabulary <= VOCABULARY_MAX
    header = HEADER.pack(MAGIC, vocabulary, tokens.size)
    return header + tokens.astype(token_dtype(vocabulary)).tobytes()


def write_tokens(path: Path, tokens: NDArray[np.integer[Any]], vocabulary: int) -> None:
    """Write `tokens.bin`; raises `UnavailableError` when the disk does not take it."""
    write_atomically(path, encode_tokens(tokens, vocabulary))


def read_tokens(path: Path) -> tuple[Tokens, int]:
    """The tokens, mapped from the file and read-only, and the size of their vocabulary.

    Raises:
        MalformedError: when the file is not in the one form that its header allows, or a token lies outside.
        UnavailableError: when there is no such file.
    """
    size = file_size(path)
    try:
        with path.open("rb") as file:
            header = file.read(HEADER.size)
    except OSError as error:
        raise UnavailableError(f"{path}: {error.strerror}") from None
    if len(header) < HEADER.size or header[:8] != MAGIC:
        raise MalformedError(f"{path.name}: not a file of tokens")
    _, vocabulary, count = HEADER.unpack(header)
    if not 1 <= vocabulary <= VOCABULARY_MAX:
        raise MalformedError(f"{path.name}: a vocabulary of {vocabulary} is not within 1 to {VOCABULARY_MAX}")
    dtype = token_dtype(vocabulary)
    expected = HEADER.size + count * dtype.itemsize
    if size != expected:
        raise MalformedError(f"{path.name}: {size} bytes, but {count} tokens make {expected}")
    if count == 0:
        return np.empty(0, dtype), vocabulary
    tokens = np.memmap(path, dtype, mode="r", offset=HEADER.size, shape=(count,))
    if tokens.max() >= vocabulary:
        first = int(np.argmax(tokens >= vocabulary))
        raise MalformedError(f"{path.name}: token {first} lies outside the vocabulary of {vocabulary}")
    return tokens, vocabulary


def chunk_tokens(tokens: Tokens) -> list[Hash]:
    """The leaf hash of each chunk of the tokens' bytes, header left out: token p lies in chunk p * width // 1 MiB."""
    step = CHUNK_BYTES // tokens.itemsize
    return [leaf_hash(tokens[start : start + step].tobytes()) for start in range(0, tokens.size, step)]


def commit_tokens(tokens: Tokens, vocabulary: int) -> TokensCommit:
    """Commit to `tokens`, of the dtype that `token_dtype` gives for `vocabulary`."""
    assert tokens.dtype == token_dtype(vocabulary)
    return TokensCommit(count=tokens.size, vocabulary=vocabulary, root=tree_root(chunk_tokens(tokens)))


# Tokenizers: single bytes, or byte-pair encoding over bytes, each defined by a few lines of JSON.
#
# Tokens 0 to 255 are the bytes; every merge of two tokens makes the next one. Text is first cut into pieces by
# a fixed rule that knows ASCII only: it needs no Unicode tables, which change with every Unicode version.

TokenizerKind = Literal["bytes", "bpe"]
BYTE_TOKENS: Final = 256
TOKENIZER_BYTES_MAX: Final = 64 << 20
PIECE_CHARACTERS: Final = 32
TOKEN_BYTES_MAX: Final = 4 * (PIECE_CHARACTERS + 1)
MERGES_MAX: Final = VOCABULARY_MAX - BYTE_TOKENS
PIECE_RULE: Final = "ascii/v1"

Merge = tuple[Count, Count]


class Tokenizer(Document):
    """The content of `tokenizer.json`: which pairs of tokens are merged, the most urgent first; none for `bytes`.

    A merge has tokens that exist when it is made, stands once, and makes no token longer than a piece can be.

    >>> Tokenizer.bpe([(104, 105)]).vocabulary
    257
    """

    digest_noun: ClassVar[str] = "tokenizer"
    document_bytes_max: ClassVar[int] = TOKENIZER_BYTES_MAX

    kind: TokenizerKind
    merges: Annotated[tuple[Merge, ...], Field(max_length=MERGES_MAX)] | None = None
    pieces: Literal["ascii/v1"] | None = None
    version: Literal[1] = 1

    @classmethod
    def bpe(cls, merges: Iterable[Merge]) -> Self:
        """The byte-pair encoding of these merges; raises `ValidationError` for merges that no training makes."""
        return cls(kind="bpe", merges=tuple(merges), pieces=PIECE_RULE)

    @model_validator(mode="after")
    def _merges_what_is_there(self) -> Self:
        if {self.merges is None, self.pieces is None} != {self.kind == "bytes"}:
            raise ValueError("merges and pieces belong to the kind bpe")
        _ = self._numbers
        return self

    @cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """The bytes each token stands for; a merge whose bytes are a token already names that token."""
        return tuple(self._numbers)

    @cached_property
    def ranks(self) -> dict[Merge, tuple[int, int]]:
        """How urgent each merge is, lowest first, and the token it makes."""
        tokens = self.tokens
        return {
            (left, right): (rank, self._numbers[tokens[left] + tokens[right]])
            for rank, (left, right) in enumerate(self.merges or ())
        }

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return len(self._numbers)

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        """The numbers of all tokens; raises `ValueError` at a merge that no training makes."""
        tokens = [bytes([byte]) for byte in range(BYTE_TOKENS)]
        numbers, seen = {token: number for number, token in enumerate(tokens)}, set[Merge]()
        for rank, pair in enumerate(self.merges or ()):
            if max(pair) >= len(tokens):
                raise ValueError(f"merges[{rank}]: {max(pair)} is no token yet")
            token = tokens[pair[0]] + tokens[pair[1]]
            if pair in seen:
                raise ValueError(f"merges[{rank}]: given before")
            if len(token) > TOKEN_BYTES_MAX:
                raise ValueError(f"merges[{rank}]: makes a token of {len(token)} bytes")
            seen.add(pair)
            if numbers.setdefault(token, len(tokens)) == len(tokens):
                tokens.append(token)
        return numbers


BYTES: Final = Tokenizer(kind="bytes")
"""The tokenizer whose tokens are single bytes."""


# Turning text into tokens and back, by the definition of the tokenizer alone.

TrainBpe = Callable[[str, int], Tokenizer]
"""Trains a tokenizer on a text; the second argument is the largest number of tokens."""

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
        return BYTES
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
    while possible := [(ranks[pair], at) for at, pair in enumerate(pairwise(tokens)) if pair in ranks]:
        (_, made), at = min(possible)
        tokens[at : at + 2] = [made]
    return tokens


# Encoders: what turns the documents of a corpus into one row of tokens.

BATCH_CHARACTERS: Final = 1 << 18


class Encoder(Protocol):
    """A tokenizer that also says where documents end."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens: every token lies below it."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """The tokens of documents one after the other, uint32[count], each with its end."""
        ...


ReadEncoder = Callable[[bytes, str], Encoder]
"""Reads the file of a tokenizer made elsewhere; the second argument is the token that ends documents."""


class BytesEncoder:
    """The bytes of the UTF-8 text of each document, and a LF."""

    vocabulary = 256

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """The tokens of documents one after the other, uint32[count]."""
        return np.frombuffer("".join(f"{text}\n" for text in texts).encode(), np.uint8).astype(np.uint32)


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The documents in lists of about 256 Ki characters, so that a shard may be larger than memory."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
