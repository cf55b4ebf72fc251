"""Tokens of which some chunks are there, each with its proof: what a few steps of a run need of a large corpus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tallystick.commitments.proofs import check_inclusion
from tallystick.commitments.tree import Hash, leaf_hash
from tallystick.datasets.chunks import chunk_count
from tallystick.datasets.order import Indices
from tallystick.datasets.samples import Arrays, check_indices
from tallystick.datasets.tokens import chunk_tokens, read_tokens, token_dtype
from tallystick.documents.document import Document
from tallystick.documents.files import read_document, write_atomically
from tallystick.errors import ProofError, UnavailableError
from tallystick.transcripts.dataset import CHUNK_BYTES, TokensCommit

CHUNKS_KEPT = 64
"""The most chunks in memory at a time."""
HashText = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Proof = Annotated[tuple[HashText, ...], Field(max_length=64)]


class ChunkProof(Document):
    """The proof that a chunk of 1 MiB stands at its place under the root of the tokens."""

    chunk: Literal["tokens"] = "tokens"
    version: Literal[1] = 1
    index: Annotated[int, Field(ge=0)]
    proof: Proof


def chunk_file(index: int) -> str:
    """The name of the file of a chunk; its proof is beside it, as JSON."""
    return f"chunk_{index:08d}.bin"


@dataclass(frozen=True, eq=False)
class TokenChunks:
    """Windows of `sequence` tokens, read from the chunks in `folder`, each checked when it is first used.

    A chunk that is missing raises `UnavailableError`, one that is not the committed one `ProofError`.
    """

    folder: Path
    tokens: TokensCommit
    sequence: int
    _kept: dict[int, NDArray[Any]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of windows, of all chunks."""
        return max(self.tokens.count - 1, 0) // self.sequence

    def batch(self, indices: Indices) -> Arrays:
        """`inputs` and `targets`, int64[batch, sequence] each; raises `MalformedError` outside the data."""
        check_indices(indices, self.count)
        places = indices[:, np.newaxis] * self.sequence + np.arange(self.sequence + 1)
        found = self._at(places)
        return {"inputs": found[:, :-1], "targets": found[:, 1:]}

    def _at(self, places: Indices) -> Indices:
        width = CHUNK_BYTES // token_dtype(self.tokens.vocabulary).itemsize
        found = np.empty(places.shape, np.int64)
        for index in np.unique(places // width):
            inside = places // width == index
            found[inside] = self._chunk(int(index))[places[inside] - index * width]
        return found

    def _chunk(self, index: int) -> NDArray[Any]:
        if index not in self._kept:
            while len(self._kept) >= CHUNKS_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[index] = self._read(index)
        return self._kept[index]

    def _read(self, index: int) -> NDArray[Any]:
        path, dtype = self.folder / chunk_file(index), token_dtype(self.tokens.vocabulary)
        data = read_document(path, CHUNK_BYTES)
        proof = ChunkProof.from_bytes(read_document(path.with_suffix(".json")), f"{path.stem}.json")
        hashes, count = (
            [Hash(bytes.fromhex(text)) for text in proof.proof],
            chunk_count(self.tokens.count * dtype.itemsize),
        )
        try:
            check_inclusion(hashes, leaf_hash(data), index, count, self.tokens.root)
        except ProofError as error:
            raise ProofError(f"{path.name}: not chunk {index} of the committed tokens ({error})") from None
        found = np.frombuffer(data, dtype)
        if found.size and found.max() >= self.tokens.vocabulary:
            raise ProofError(f"{path.name}: a token lies outside the vocabulary of {self.tokens.vocabulary}")
        return found


def write_chunks(tokens_file: Path, folder: Path, windows: Iterable[int], sequence: int) -> None:
    """Write the chunks that hold `windows` of `sequence` tokens and the target behind each, with their proofs.

    Raises `UnavailableError` where there are no tokens or the disk refuses the chunks.
    """
    tokens, _ = read_tokens(tokens_file)
    width, chunks = CHUNK_BYTES // tokens.itemsize, chunk_tokens(tokens)
    ends = (place for window in windows for place in (window * sequence, (window + 1) * sequence))
    needed = {place // width for place in ends}
    if needed and max(needed) >= len(chunks.leaves):
        raise UnavailableError(f"{tokens_file.name}: ends before the last window")
    for index in sorted(needed):
        write_atomically(folder / chunk_file(index), tokens[index * width : (index + 1) * width].tobytes())
        proof = ChunkProof(index=index, proof=tuple(each.hex() for each in chunks.prove(index)))
        write_atomically((folder / chunk_file(index)).with_suffix(".json"), proof.to_bytes())
