"""The tokens of a corpus under a root that binds them to its shards, all or some chunks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tallystick.core.canonical_json import encode
from tallystick.core.digests import (
    LeafHashes,
    check_inclusion,
    digest,
    hashes_from,
    leaf_hash,
    prove_inclusion,
    tree_root,
)
from tallystick.core.documents import Count, Document, HashBytes, Proof
from tallystick.core.errors import ProofError, UnavailableError
from tallystick.core.files import read_document, write_atomically
from tallystick.formats.data.corpus import COMMIT_BYTES_MAX, Corpus, Shard, read_corpus_commit
from tallystick.formats.data.records import ChunkHasher, chunk_count, shown
from tallystick.formats.data.tokenizer import (
    HEADER,
    MAGIC,
    TOKENIZER_BYTES_MAX,
    Encoder,
    Tokens,
    batches,
    chunk_tokens,
    commit_tokens,
    read_tokens,
    token_dtype,
)
from tallystick.formats.dataset import CHUNK_BYTES, VOCABULARY_MAX, DatasetCommitment, TokensCommit

# The tokens of a corpus: one file for each shard, mapped when it is read, and a root that binds them to the shards.
#
# corpus.json tokenizer.json       the commit of the shards, and the file of the tokenizer
# tokens.json tokens/00000000.bin  how many tokens each shard has and their root, and the tokens themselves

CORPUS_FILE: Final = "corpus.json"
TOKENIZER_FILE: Final = "tokenizer.json"
TOKENS_LIST: Final = "tokens.json"


class ShardTokens(Document):
    """The number of tokens of one shard, and the root over their chunks."""

    count: Count
    root: HashBytes


class CorpusTokens(Document):
    """The content of `tokens.json`: the tokens of all shards in their order, and the size of their vocabulary."""

    document_bytes_max: ClassVar[int] = COMMIT_BYTES_MAX

    shards: tuple[ShardTokens, ...]
    version: Literal[1] = 1
    vocabulary: Annotated[int, Field(ge=1, le=VOCABULARY_MAX)]

    def commit(self, corpus: Corpus) -> TokensCommit:
        """The commitment to these tokens as those of the shards of `corpus`; raises `ProofError` for another number."""
        if len(self.shards) != len(corpus.shards):
            raise ProofError(f"{TOKENS_LIST}: tokens of {len(self.shards)} shards, not {len(corpus.shards)}")
        leaves = [
            leaf_hash(encode({"count": tokens.count, "root": tokens.root.hex(), "shard": shard.to_json()}))
            for tokens, shard in zip(self.shards, corpus.shards, strict=True)
        ]
        count = sum(tokens.count for tokens in self.shards)
        return TokensCommit(count=count, vocabulary=self.vocabulary, root=tree_root(leaves))


@dataclass(frozen=True, eq=False)
class JoinedTokens:
    """The tokens of several files as one row: where each begins, and what gives the tokens of one."""

    starts: NDArray[np.int64]
    part: Callable[[int], Tokens]

    @property
    def size(self) -> int:
        """The number of tokens."""
        return int(self.starts[-1])

    def __getitem__(self, places: NDArray[np.int64]) -> NDArray[np.unsignedinteger[Any]]:
        """The tokens at `places`, in the shape of `places`; raises what `part` raises."""
        row = np.empty(places.shape, np.uint32)
        shards = np.searchsorted(self.starts, places, side="right") - 1
        for shard in np.unique(shards):
            inside = shards == shard
            row[inside] = self.part(int(shard))[places[inside] - self.starts[shard]]
        return row


def write_shard_tokens(path: Path, texts: Iterable[str], encoder: Encoder, vocabulary: int) -> ShardTokens:
    """Write the tokens of one shard while they are made; `vocabulary` may be larger than the encoder's."""
    dtype, hasher, count = token_dtype(vocabulary), ChunkHasher(), 0

    def write(file: BinaryIO) -> None:
        nonlocal count
        file.write(HEADER.pack(MAGIC, vocabulary, 0))
        for batch in batches(texts):
            tokens = encoder.encode(batch).astype(dtype)
            hasher.update(tokens.tobytes())
            file.write(tokens.tobytes())
            count += tokens.size
        file.seek(0)
        file.write(HEADER.pack(MAGIC, vocabulary, count))

    write_atomically(path, write)
    return ShardTokens(count=count, root=hasher.root())


def open_corpus_tokens(folder: Path, commitment: DatasetCommitment, *, lazily: bool = False) -> JoinedTokens:
    """The committed tokens in `folder`, mapped from their files, after a check of every digest.

    With `lazily` the tokens of a shard are read and checked when they are first used, and others may be missing.

    Raises:
        ProofError: naming the file whose content is not the committed one.
        MalformedError: when a file is not what its name says.
        UnavailableError: when a file is missing.
    """
    corpus = read_run_corpus(folder, commitment)
    tokens = read_tokens_list(folder, corpus, commitment)
    read_tokenizer_file(folder, commitment)
    part = cache(lambda index: open_shard_tokens(folder, index, tokens, corpus.shards[index]))
    if not lazily:
        with ThreadPoolExecutor() as pool:
            list(pool.map(part, range(len(corpus.shards))))
    return JoinedTokens(_starts(shard.count for shard in tokens.shards), part)


def files_of_windows(folder: Path, windows: Iterable[int], sequence: int) -> list[Path]:
    """The files in `folder` that `open_corpus_tokens` reads for these windows; raises what reading the list raises."""
    listed = CorpusTokens.from_bytes(read_document(folder / TOKENS_LIST, COMMIT_BYTES_MAX), TOKENS_LIST)
    starts = _starts(tokens.count for tokens in listed.shards)
    ends = np.array([place for window in windows for place in (window * sequence, (window + 1) * sequence)], np.int64)
    first, last = (np.searchsorted(starts, part, side="right") - 1 for part in (ends[::2], ends[1::2]))
    shards = {shard for pair in zip(first, last, strict=True) for shard in range(pair[0], pair[1] + 1)}
    names = CORPUS_FILE, TOKENIZER_FILE, TOKENS_LIST
    return [*(folder / name for name in names), *(token_path(folder, shard) for shard in sorted(shards))]


def open_shard_tokens(folder: Path, index: int, tokens: CorpusTokens, shard: Shard) -> Tokens:
    """The tokens of shard `index`; raises `ProofError` naming the shard for others."""
    row, vocabulary = read_tokens(token_path(folder, index))
    made, stated = commit_tokens(row, vocabulary), tokens.shards[index]
    if (vocabulary, made.count, made.root) != (tokens.vocabulary, stated.count, stated.root):
        raise ProofError(f"tokens/{token_path(folder, index).name}: not the committed tokens of {shown(shard.name)}")
    return row


def read_run_corpus(folder: Path, commitment: DatasetCommitment) -> Corpus:
    """The commit of the shards in `folder`; raises `ProofError` where it is not that of the data."""
    corpus = read_corpus_commit(folder / CORPUS_FILE)
    if corpus.commit != commitment.source:
        raise ProofError(f"{CORPUS_FILE}: not the committed corpus")
    return corpus


def read_tokens_list(folder: Path, corpus: Corpus, commitment: DatasetCommitment) -> CorpusTokens:
    """The list of tokens in `folder`; raises `ProofError` where it is not that of the data."""
    tokens = CorpusTokens.from_bytes(read_document(folder / TOKENS_LIST, COMMIT_BYTES_MAX), TOKENS_LIST)
    if tokens.commit(corpus) != commitment.tokens:
        raise ProofError(f"{TOKENS_LIST}: not the committed tokens")
    return tokens


def read_tokenizer_file(folder: Path, commitment: DatasetCommitment) -> bytes:
    """The committed file of the tokenizer in `folder`; raises `ProofError` for another one."""
    content = read_document(folder / TOKENIZER_FILE, TOKENIZER_BYTES_MAX)
    if commitment.tokenizer != digest("blob", content):
        raise ProofError(f"{TOKENIZER_FILE}: not the committed tokenizer")
    return content


def token_path(folder: Path, index: int) -> Path:
    """The file with the tokens of shard `index`."""
    return folder / "tokens" / f"{index:08}.bin"


def _starts(counts: Iterable[int]) -> NDArray[np.int64]:
    return np.cumsum([0, *counts], dtype=np.int64)


# Tokens of which some chunks are there, each with its proof: what a few steps of a run need of a large corpus.

CHUNKS_KEPT = 64
"""The most chunks in memory at a time."""


class ChunkProof(Document):
    """The proof that a chunk of 1 MiB stands at its place under the root of the tokens."""

    chunk: Literal["tokens"] = "tokens"
    version: Literal[1] = 1
    index: Count
    proof: Proof


def chunk_file(index: int) -> str:
    """The name of the file of a chunk; its proof is beside it, as JSON."""
    return f"chunk_{index:08d}.bin"


def open_chunks(folder: Path, tokens: TokensCommit) -> JoinedTokens:
    """The row of committed tokens, read from the chunks in `folder`, each checked when it is first used.

    A chunk that is missing raises `UnavailableError`, one that is not the committed one `ProofError`.
    """
    dtype = token_dtype(tokens.vocabulary)
    width, count = CHUNK_BYTES // dtype.itemsize, chunk_count(tokens.count * dtype.itemsize)

    @lru_cache(CHUNKS_KEPT)
    def part(index: int) -> Tokens:
        path = folder / chunk_file(index)
        data = read_document(path, CHUNK_BYTES)
        proof = ChunkProof.from_bytes(read_document(path.with_suffix(".json")), f"{path.stem}.json")
        try:
            check_inclusion(hashes_from(proof.proof), leaf_hash(data), index, count, tokens.root)
        except ProofError as error:
            raise ProofError(f"{path.name}: not chunk {index} of the committed tokens ({error})") from None
        chunk = np.frombuffer(data, dtype)
        if chunk.size and chunk.max() >= tokens.vocabulary:
            raise ProofError(f"{path.name}: a token lies outside the vocabulary of {tokens.vocabulary}")
        return chunk

    return JoinedTokens(np.append(np.arange(count, dtype=np.int64) * width, tokens.count), part)


def write_chunks(tokens_file: Path, folder: Path, windows: Iterable[int], sequence: int) -> None:
    """Write the chunks that hold `windows` of `sequence` tokens and the target behind each, with their proofs.

    Raises `UnavailableError` where there are no tokens or the disk refuses the chunks.
    """
    tokens, _ = read_tokens(tokens_file)
    width, chunks = CHUNK_BYTES // tokens.itemsize, chunk_tokens(tokens)
    ends = (place for window in windows for place in (window * sequence, (window + 1) * sequence))
    needed = {place // width for place in ends}
    if needed and max(needed) >= len(chunks):
        raise UnavailableError(f"{tokens_file.name}: ends before the last window")
    for index in sorted(needed):
        write_atomically(folder / chunk_file(index), tokens[index * width : (index + 1) * width].tobytes())
        nodes = prove_inclusion(LeafHashes(chunks), index, len(chunks))
        proof = ChunkProof(index=index, proof=tuple(node.hex() for node in nodes))
        write_atomically((folder / chunk_file(index)).with_suffix(".json"), proof.to_bytes())
