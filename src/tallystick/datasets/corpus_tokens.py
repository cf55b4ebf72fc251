"""The tokens of a corpus: one file for each shard, mapped when it is read, and a root that binds them to the shards.

corpus.json tokenizer.json       the commit of the shards, and the file of the tokenizer
tokens.json tokens/00000000.bin  how many tokens each shard has and their root, and the tokens themselves
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from tallystick.commitments.digests import digest
from tallystick.commitments.encoding import Json, decode, encode
from tallystick.commitments.tree import Hash, leaf_hash, tree_root
from tallystick.datasets.chunks import ChunkHasher
from tallystick.datasets.corpus import COMMIT_BYTES_MAX, Corpus, Shard
from tallystick.datasets.corpus_files import read_corpus_commit
from tallystick.datasets.encoding import Encoder, batches
from tallystick.datasets.names import shown
from tallystick.datasets.tokenizer import TOKENIZER_BYTES_MAX, Tokenizer
from tallystick.datasets.tokens import HEADER, MAGIC, Tokens, commit_tokens, read_tokens, token_dtype
from tallystick.documents.fields import constant, fields, hash_field, integer, items
from tallystick.documents.files import read_document, write_atomically
from tallystick.errors import ProofError
from tallystick.transcripts.dataset import VOCABULARY_MAX, DatasetCommitment, TokensCommit
from tallystick.transcripts.recipe import TokenizerRecipe

CORPUS_FILE: Final = "corpus.json"
TOKENIZER_FILE: Final = "tokenizer.json"
TOKENS_LIST: Final = "tokens.json"


@dataclass(frozen=True)
class ShardTokens:
    """The number of tokens of one shard, and the root over their chunks."""

    count: int
    root: Hash

    def to_json(self) -> dict[str, Json]:
        """The object as JSON values."""
        return {"count": self.count, "root": self.root.hex()}

    @classmethod
    def from_json(cls, value: Json, what: str) -> ShardTokens:
        """Read what `to_json` gives; raises `MalformedError` naming the field under `what`."""
        parts = fields(value, ("count", "root"), what)
        return cls(integer(parts["count"], f"{what}.count"), hash_field(parts["root"], f"{what}.root"))


@dataclass(frozen=True)
class CorpusTokens:
    """The tokens of all shards in the order of the shards, and the size of their vocabulary."""

    vocabulary: int
    shards: tuple[ShardTokens, ...]

    def commit(self, corpus: Corpus) -> TokensCommit:
        """The commitment to these tokens as those of the shards of `corpus`; raises `ProofError` for another number."""
        if len(self.shards) != len(corpus.shards):
            raise ProofError(f"{TOKENS_LIST}: tokens of {len(self.shards)} shards, not {len(corpus.shards)}")
        pairs = zip(self.shards, corpus.shards, strict=True)
        leaves = [leaf_hash(_leaf(tokens, shard)) for tokens, shard in pairs]
        return TokensCommit(sum(each.count for each in self.shards), self.vocabulary, tree_root(leaves))

    def to_bytes(self) -> bytes:
        """The content of `tokens.json`: canonical JSON."""
        listed: list[Json] = [each.to_json() for each in self.shards]
        return encode({"shards": listed, "version": 1, "vocabulary": self.vocabulary})

    @classmethod
    def from_bytes(cls, data: bytes) -> CorpusTokens:
        """Read `tokens.json`; raises `MalformedError`."""
        value = decode(data, TOKENS_LIST, bytes_max=COMMIT_BYTES_MAX)
        parts = fields(value, ("shards", "version", "vocabulary"), "tokens")
        constant(parts["version"], 1, "tokens.version")
        vocabulary = integer(parts["vocabulary"], "tokens.vocabulary", 1, VOCABULARY_MAX)
        entries = enumerate(items(parts["shards"], "tokens.shards"))
        return cls(vocabulary, tuple(ShardTokens.from_json(entry, f"tokens.shards[{at}]") for at, entry in entries))


@dataclass(frozen=True, eq=False)
class JoinedTokens:
    """The tokens of several files as one row: where each begins, and what gives the tokens of one."""

    starts: NDArray[np.int64]
    part: Callable[[int], Tokens]

    @classmethod
    def of(cls, parts: Sequence[Tokens]) -> JoinedTokens:
        """The row of `parts`, one after the other."""
        return cls(_starts(part.size for part in parts), parts.__getitem__)

    @property
    def size(self) -> int:
        """The number of tokens."""
        return int(self.starts[-1])

    def __getitem__(self, places: NDArray[np.int64]) -> NDArray[np.unsignedinteger[Any]]:
        """The tokens at `places`, in the shape of `places`; raises what `part` raises."""
        found = np.empty(places.shape, np.uint32)
        shards = np.searchsorted(self.starts, places, side="right") - 1
        for shard in np.unique(shards):
            inside = shards == shard
            found[inside] = self.part(int(shard))[places[inside] - self.starts[shard]]
        return found


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
    return ShardTokens(count, hasher.finish().root)


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
    return JoinedTokens(_starts(each.count for each in tokens.shards), part)


def files_of_windows(folder: Path, windows: Iterable[int], sequence: int) -> list[Path]:
    """The files in `folder` that `open_corpus_tokens` reads for these windows; raises what reading the list raises."""
    listed = CorpusTokens.from_bytes(read_document(folder / TOKENS_LIST, COMMIT_BYTES_MAX))
    starts = _starts(each.count for each in listed.shards)
    ends = np.array([place for window in windows for place in (window * sequence, (window + 1) * sequence)], np.int64)
    first, last = (np.searchsorted(starts, part, side="right") - 1 for part in (ends[::2], ends[1::2]))
    shards = {shard for pair in zip(first, last, strict=True) for shard in range(pair[0], pair[1] + 1)}
    names = CORPUS_FILE, TOKENIZER_FILE, TOKENS_LIST
    return [*(folder / name for name in names), *(token_path(folder, shard) for shard in sorted(shards))]


def open_shard_tokens(folder: Path, index: int, tokens: CorpusTokens, shard: Shard) -> Tokens:
    """The tokens of shard `index`; raises `ProofError` naming the shard for others."""
    found, vocabulary = read_tokens(token_path(folder, index))
    made = commit_tokens(found, vocabulary)
    if vocabulary != tokens.vocabulary or ShardTokens(made.count, made.root) != tokens.shards[index]:
        raise ProofError(f"tokens/{token_path(folder, index).name}: not the committed tokens of {shown(shard.name)}")
    return found


def read_run_corpus(folder: Path, commitment: DatasetCommitment) -> Corpus:
    """The commit of the shards in `folder`; raises `ProofError` where it is not that of the data."""
    corpus = read_corpus_commit(folder / CORPUS_FILE)
    if corpus.commit != commitment.source:
        raise ProofError(f"{CORPUS_FILE}: not the committed corpus")
    return corpus


def read_tokens_list(folder: Path, corpus: Corpus, commitment: DatasetCommitment) -> CorpusTokens:
    """The list of tokens in `folder`; raises `ProofError` where it is not that of the data."""
    tokens = CorpusTokens.from_bytes(read_document(folder / TOKENS_LIST, COMMIT_BYTES_MAX))
    if tokens.commit(corpus) != commitment.tokens:
        raise ProofError(f"{TOKENS_LIST}: not the committed tokens")
    return tokens


def read_tokenizer_file(folder: Path, commitment: DatasetCommitment) -> bytes:
    """The committed file of the tokenizer in `folder`; raises `ProofError` for another one."""
    content = read_document(folder / TOKENIZER_FILE, TOKENIZER_BYTES_MAX)
    if commitment.tokenizer != digest("blob", content):
        raise ProofError(f"{TOKENIZER_FILE}: not the committed tokenizer")
    return content


def check_stated_tokenizer(commitment: DatasetCommitment, recipe: TokenizerRecipe) -> None:
    """Raise `ProofError` unless the data is tokenized by what the recipe states: a file by its digest, or the bytes."""
    if commitment.tokenizer != (recipe.digest or digest("blob", Tokenizer("bytes").to_bytes())):
        raise ProofError(f"{TOKENIZER_FILE}: not the tokenizer that the recipe states")


def token_path(folder: Path, index: int) -> Path:
    """The file with the tokens of shard `index`."""
    return folder / "tokens" / f"{index:08}.bin"


def _leaf(tokens: ShardTokens, shard: Shard) -> bytes:
    return encode({**tokens.to_json(), "shard": shard.to_json()})


def _starts(counts: Iterable[int]) -> NDArray[np.int64]:
    return np.cumsum([0, *counts], dtype=np.int64)
