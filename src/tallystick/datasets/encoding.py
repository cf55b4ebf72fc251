"""Encoders: what turns the documents of a corpus into one row of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

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
    held = 0
    for text in texts:
        batch.append(text)
        held += len(text)
        if held >= BATCH_CHARACTERS:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
