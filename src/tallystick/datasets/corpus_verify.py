"""Deriving the tokens of shards again from a verifier's own copy of the corpus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tallystick.datasets.corpus import Corpus
from tallystick.datasets.corpus_files import check_shard, read_leaves
from tallystick.datasets.corpus_preparation import encoder_of, stated_vocabulary
from tallystick.datasets.corpus_tokens import (
    CORPUS_FILE,
    CorpusTokens,
    open_shard_tokens,
    read_run_corpus,
    read_tokenizer_file,
    read_tokens_list,
)
from tallystick.datasets.encoding import Encoder, ReadEncoder, batches
from tallystick.datasets.names import shown
from tallystick.datasets.shard_texts import read_texts
from tallystick.datasets.shards import Hashed, find_shard, hash_shards, silent
from tallystick.datasets.tokens import Tokens
from tallystick.datasets.verify import UNKNOWN
from tallystick.errors import ProofError, UnavailableError
from tallystick.transcripts.dataset import DatasetCommitment
from tallystick.transcripts.recipe import Recipe


@dataclass(frozen=True)
class Encoding:
    """A verifier's own reader of tokenizers; `library` is the version it runs, `stated` the one of the prover."""

    read: ReadEncoder
    library: str = UNKNOWN
    stated: str = UNKNOWN


@dataclass(frozen=True)
class CorpusCheck:
    """What a run holds about its corpus, opened, and a verifier's copy of the shards."""

    folder: Path
    directory: Path
    corpus: Corpus
    tokens: CorpusTokens
    leaves: dict[str, bytes]
    encoder: Encoder
    field: str
    encoding: Encoding

    @classmethod
    def open(
        cls, folder: Path, directory: Path, commitment: DatasetCommitment, recipe: Recipe, encoding: Encoding
    ) -> CorpusCheck:
        """Read what `folder` holds; raises what `open_corpus_tokens` raises.

        Raises `ProofError` where the vocabulary is not the one that recipe and tokenizer give.
        """
        corpus = read_run_corpus(folder, commitment)
        tokens = read_tokens_list(folder, corpus, commitment)
        encoder = encoder_of(recipe.tokenizer, read_tokenizer_file(folder, commitment), encoding.read)
        if tokens.vocabulary != stated_vocabulary(recipe.tokenizer, encoder):
            raise ProofError(f"the tokens have a vocabulary of {tokens.vocabulary}, the tokenizer another one")
        leaves = read_leaves(folder / CORPUS_FILE, corpus)
        return cls(folder, directory, corpus, tokens, leaves, encoder, recipe.data.text_field, encoding)

    def check(self, indices: Iterable[int], done: Hashed = silent) -> None:
        """Hash and tokenize the shards `indices` again; `done` is told how many bytes were hashed.

        Raises:
            ProofError: naming the first shard that is not the committed one, or whose tokens are others.
            UnavailableError: naming the first shard that is missing; or tokens differ under another library's version.
        """
        for index in indices:
            self._check_shard(index, done)

    def _check_shard(self, index: int, done: Hashed) -> None:
        shard = self.corpus.shards[index]
        file = find_shard(self.directory, shard.name)
        check_shard(next(hash_shards([file], None, done)), shard, self.leaves.get(shard.name, b""))
        claimed = open_shard_tokens(self.folder, index, self.tokens, shard)
        try:
            check_texts(claimed, read_texts(file, self.field), self.encoder)
        except ProofError as error:
            self._judge(ProofError(f"{shown(shard.name)}: {error}"))

    def _judge(self, error: ProofError) -> None:
        """Another version of the library may make other tokens; that of the run is needed to decide."""
        encoding = self.encoding
        if self.encoder.vocabulary == 256 or encoding.library == encoding.stated != UNKNOWN:
            raise error
        raise UnavailableError(
            f"{error} with tokenizers {encoding.library}; the run states {encoding.stated}, "
            "and another version may make other tokens: install that one to decide"
        )


def check_texts(claimed: Tokens, texts: Iterable[str], encoder: Encoder) -> None:
    """Raise `ProofError` naming the first place at which the tokens of documents are not those claimed."""
    at = 0
    for batch in batches(texts):
        made = encoder.encode(batch)
        there = claimed[at : at + made.size]
        different = np.flatnonzero(there != made[: there.size])
        if different.size:
            place = int(different[0])
            raise ProofError(f"token {at + place} is {there[place]}, but the documents give {made[place]}")
        at += made.size
        if there.size < made.size:
            break
    if at != claimed.size:
        raise ProofError(f"{claimed.size} tokens, but the documents give {'more' if at > claimed.size else at}")
