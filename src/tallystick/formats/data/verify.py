"""Deriving prepared data again from its source or corpus, and comparing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tallystick.core.errors import ProofError, UnavailableError
from tallystick.core.files import FILE_BYTES_MAX, read_document
from tallystick.formats.data.corpus import Corpus, Hashed, find_shard, hash_shards, silent
from tallystick.formats.data.corpus_files import check_shard, read_leaves
from tallystick.formats.data.preparation import (
    check_stated_tokenizer,
    encoder_of,
    open_dataset,
    open_tokens,
    read_source,
    read_tokenizer,
    stated_vocabulary,
    text_kind,
)
from tallystick.formats.data.records import TextKind, normalize_newlines, read_corpus, shown
from tallystick.formats.data.samples import ExampleDataset, load_digits
from tallystick.formats.data.texts import read_texts
from tallystick.formats.data.tokenizer import (
    Encoder,
    ReadEncoder,
    Tokenizer,
    TokenizerKind,
    Tokens,
    TrainBpe,
    batches,
    make_tokenizer,
    read_tokens,
    tokenize,
)
from tallystick.formats.data.tokens import (
    CORPUS_FILE,
    TOKENIZER_FILE,
    CorpusTokens,
    open_shard_tokens,
    read_run_corpus,
    read_tokenizer_file,
    read_tokens_list,
)
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.recipe import Recipe

# Deriving prepared data again from its source, and comparing.

UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class BpeTraining:
    """A verifier's own training of byte-pair encoders.

    `library` is the version it runs, `stated` the one that the prover states; another one may learn other merges.
    """

    train: TrainBpe
    library: str = UNKNOWN
    stated: str = UNKNOWN


def verify_data(folder: Path, commitment: DatasetCommitment) -> None:
    """Derive the data in `folder` again: tokens from the source, or the digits from scikit-learn.

    Raises:
        ProofError: naming the file, or the first token, that differs.
    """
    dataset = open_dataset(folder, commitment)
    if isinstance(dataset, ExampleDataset):
        _check_digits(dataset)
        return
    tokens, _ = open_tokens(folder, commitment)
    corpus = read_corpus(text_kind(commitment), read_source(folder, commitment))
    check_tokens(tokens, tokenize(read_tokenizer(folder, commitment), corpus))


def verify_tokenizer(
    folder: Path, commitment: DatasetCommitment, kind: TokenizerKind, vocabulary: int, training: BpeTraining
) -> None:
    """Make the tokenizer again from the committed source, as the recipe states it, and compare every merge.

    Raises:
        ProofError: naming the first merge that differs.
        UnavailableError: one differs, and the library is not known to be the one that the run was made with.
    """
    corpus = read_corpus(text_kind(commitment), read_source(folder, commitment))
    claimed = read_tokenizer(folder, commitment)
    check_stated_tokenizer(claimed, kind, vocabulary)
    try:
        _check_training(claimed, make_tokenizer(corpus, kind, vocabulary, training.train))
    except ProofError as error:
        if training.library == training.stated != UNKNOWN:
            raise
        raise UnavailableError(
            f"{error} with tokenizers {training.library}; the run states {training.stated}, "
            "and another version may learn other merges: install that one to decide"
        ) from None


def verify_tokens(kind: TextKind, source: Path, tokenizer: Tokenizer, tokens: Path) -> None:
    """Tokenize `source` and raise `ProofError` naming the first position at which `tokens` differs."""
    claimed, vocabulary = read_tokens(tokens)
    if vocabulary != tokenizer.vocabulary:
        raise ProofError(f"{tokens.name}: a vocabulary of {vocabulary}, not {tokenizer.vocabulary}")
    corpus = read_corpus(kind, normalize_newlines(kind, read_document(source, FILE_BYTES_MAX)))
    check_tokens(claimed, tokenize(tokenizer, corpus))


def check_tokens(claimed: Tokens, replayed: Tokens) -> None:
    """Raise `ProofError` naming the first position at which the claimed tokens differ."""
    shared = min(claimed.size, replayed.size)
    different = np.flatnonzero(claimed[:shared] != replayed[:shared])
    if different.size:
        at = int(different[0])
        raise ProofError(f"token {at} is {claimed[at]}, but the source gives {replayed[at]}")
    if claimed.size != replayed.size:
        raise ProofError(f"token {shared}: {claimed.size} tokens, but the source gives {replayed.size}")


def _check_training(claimed: Tokenizer, trained: Tokenizer) -> None:
    if claimed == trained:
        return
    ours, theirs = trained.merges or (), claimed.merges or ()
    at = next((rank for rank, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), len(ours))
    raise ProofError(f"{TOKENIZER_FILE}: merge {at} is not the one that training on the source gives")


def _check_digits(claimed: ExampleDataset) -> None:

    images, labels = load_digits()
    if claimed.images.shape != images.shape:
        raise ProofError(f"the examples have shape {claimed.images.shape}, but the digits {images.shape}")
    same = (claimed.labels == labels) & (claimed.images == images).all(axis=(1, 2, 3))
    if not same.all():
        raise ProofError(f"example {int(np.argmin(same))} is not that of the digits")


# Deriving the tokens of shards again from a verifier's own copy of the corpus.


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
