"""Tokens in a binary file: 24 bytes of header, then little-endian integers, under a root of their own.

    8 bytes   tallytk1
    8 bytes   size of the vocabulary, little-endian
    8 bytes   number of tokens, little-endian
    the rest  tokens of 2 bytes where the vocabulary has at most 65,536 entries, of 4 bytes otherwise

See `spec/tokens.md`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tallystick.datasets.chunks import ChunkHasher, Chunks
from tallystick.documents.files import file_size, write_atomically
from tallystick.errors import MalformedError, UnavailableError
from tallystick.transcripts.dataset import CHUNK_BYTES, VOCABULARY_MAX, TokensCommit

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
    vocabulary, count = _read_header(header, size, path.name)
    dtype = token_dtype(vocabulary)
    if count == 0:
        return np.empty(0, dtype), vocabulary
    tokens = np.memmap(path, dtype, mode="r", offset=HEADER.size, shape=(count,))
    if tokens.max() >= vocabulary:
        first = int(np.argmax(tokens >= vocabulary))
        raise MalformedError(f"{path.name}: token {first} lies outside the vocabulary of {vocabulary}")
    return tokens, vocabulary


def chunk_tokens(tokens: Tokens) -> Chunks:
    """The chunks of the tokens' bytes, header left out: token p lies in chunk p * width // 1 MiB."""
    hasher = ChunkHasher()
    step = CHUNK_BYTES // tokens.itemsize
    for start in range(0, tokens.size, step):
        hasher.update(tokens[start : start + step].tobytes())
    return hasher.finish()


def commit_tokens(tokens: Tokens, vocabulary: int) -> TokensCommit:
    """Commit to `tokens`, of the dtype that `token_dtype` gives for `vocabulary`."""
    assert tokens.dtype == token_dtype(vocabulary)
    return TokensCommit(tokens.size, vocabulary, chunk_tokens(tokens).root)


def _read_header(header: bytes, size: int, name: str) -> tuple[int, int]:
    if len(header) < HEADER.size or header[:8] != MAGIC:
        raise MalformedError(f"{name}: not a file of tokens")
    _, vocabulary, count = HEADER.unpack(header)
    if not 1 <= vocabulary <= VOCABULARY_MAX:
        raise MalformedError(f"{name}: a vocabulary of {vocabulary} is not within 1 to {VOCABULARY_MAX}")
    expected = HEADER.size + count * token_dtype(vocabulary).itemsize
    if size != expected:
        raise MalformedError(f"{name}: {size} bytes, but {count} tokens make {expected}")
    return vocabulary, count
