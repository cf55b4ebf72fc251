"""Prepared data derived again from its source or corpus, and compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tallystick.core.errors import ProofError, UnavailableError
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
from tallystick.formats.data.records import read_corpus, shown
from tallystick.formats.data.samples import ExampleDataset, load_digits
from tallystick.formats.data.texts import read_texts
from tallystick.formats.data.tokenizer import (
    BytesEncoder,
    Encoder,
    ReadEncoder,
    Tokens,
    TrainBpe,
    batches,
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
from tallystick.formats.recipe import Recipe, TokenizerRecipe

UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class LibraryVersions:
    """The version of the library `tokenizers` that a verifier runs, and the one that the prover states."""

    library: str = UNKNOWN
    stated: str = UNKNOWN

    def judged(self, error: ProofError) -> ProofError | UnavailableError:
        """`error`, if both ran one version; otherwise that of the prover is needed to decide."""
        if self.library == self.stated != UNKNOWN:
            return error
        return UnavailableError(
            f"{error} with tokenizers {self.library}; the run states {self.stated}, and another version may learn "
            "other merges or make other tokens: install that one to decide"
        )


def verify_data(folder: Path, commitment: DatasetCommitment) -> None:
    """Derive the data in `folder` again: tokens from the source, or the digits from scikit-learn.

    Raises:
        ProofError: naming the file, or the first token, that differs.
    """
    dataset = open_dataset(folder, commitment)
    if not isinstance(dataset, ExampleDataset):
        tokens, _ = open_tokens(folder, commitment)
        corpus = read_corpus(text_kind(commitment), read_source(folder, commitment))
        check_tokens(tokens, [tokenize(read_tokenizer(folder, commitment), corpus)], "the source gives")
        return
    images, labels = load_digits()
    if dataset.images.shape != images.shape:
        raise ProofError(f"the examples have shape {dataset.images.shape}, but the digits {images.shape}")
    same = (dataset.labels == labels) & (dataset.images == images).all(axis=(1, 2, 3))
    if not same.all():
        raise ProofError(f"example {int(np.argmin(same))} is not that of the digits")


def verify_tokenizer(
    folder: Path,
    commitment: DatasetCommitment,
    recipe: TokenizerRecipe,
    train: TrainBpe,
    versions: LibraryVersions,
) -> None:
    """Make the tokenizer again from the committed source, as the recipe states it, and compare every merge.

    Raises:
        ProofError: naming the first merge that differs.
        UnavailableError: one differs, and the library is not known to be the one that the run was made with.
    """
    corpus = read_corpus(text_kind(commitment), read_source(folder, commitment))
    check_stated_tokenizer(folder, commitment, recipe)
    claimed = read_tokenizer(folder, commitment).merges or ()
    trained = () if recipe.kind == "bytes" else train(corpus, recipe.vocabulary).merges or ()
    if claimed != trained:
        pairs = zip(claimed, trained, strict=False)
        at = next((rank for rank, (left, right) in enumerate(pairs) if left != right), len(trained))
        error = ProofError(f"{TOKENIZER_FILE}: merge {at} is not the one that training on the source gives")
        raise versions.judged(error)


def check_tokens(claimed: Tokens, batches: Iterable[NDArray[np.integer[Any]]], giver: str) -> None:
    """Raise `ProofError` naming the first place at which the claimed tokens are not those of `batches`, in order."""
    at = 0
    for made in batches:
        there = claimed[at : at + made.size]
        different = np.flatnonzero(there != made[: there.size])
        if different.size:
            place = int(different[0])
            raise ProofError(f"token {at + place} is {there[place]}, but {giver} {made[place]}")
        at += made.size
        if there.size < made.size:
            break
    if at != claimed.size:
        raise ProofError(f"{claimed.size} tokens, but {giver} {'more' if at > claimed.size else at}")


# Deriving the tokens of shards again from a verifier's own copy of the corpus.


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
    versions: LibraryVersions

    @classmethod
    def open(
        cls,
        folder: Path,
        directory: Path,
        commitment: DatasetCommitment,
        recipe: Recipe,
        read_encoder: ReadEncoder,
        versions: LibraryVersions,
    ) -> CorpusCheck:
        """Read what `folder` holds; raises what `open_corpus_tokens` raises.

        Raises `ProofError` where the vocabulary is not the one that recipe and tokenizer give.
        """
        corpus = read_run_corpus(folder, commitment)
        tokens = read_tokens_list(folder, corpus, commitment)
        encoder = encoder_of(recipe.tokenizer, read_tokenizer_file(folder, commitment), read_encoder)
        if tokens.vocabulary != stated_vocabulary(recipe.tokenizer, encoder):
            raise ProofError(f"the tokens have a vocabulary of {tokens.vocabulary}, the tokenizer another one")
        leaves = read_leaves(folder / CORPUS_FILE, corpus)
        return cls(folder, directory, corpus, tokens, leaves, encoder, recipe.data.text_field, versions)

    def check(self, indices: Iterable[int], done: Hashed = silent) -> None:
        """Hash and tokenize the shards `indices` again; `done` is told how many bytes were hashed.

        Raises:
            ProofError: naming the first shard that is not the committed one, or whose tokens are others.
            UnavailableError: naming the first shard that is missing; or tokens differ under another library's version.
        """
        for index in indices:
            shard = self.corpus.shards[index]
            file = find_shard(self.directory, shard.name)
            check_shard(next(hash_shards([file], None, done)), shard, self.leaves.get(shard.name, b""))
            claimed = open_shard_tokens(self.folder, index, self.tokens, shard)
            texts = batches(read_texts(file, self.field))
            try:
                check_tokens(claimed, map(self.encoder.encode, texts), "the documents give")
            except ProofError as error:
                named = ProofError(f"{shown(shard.name)}: {error}")
                # bytes are tokenized without the library
                raise named if isinstance(self.encoder, BytesEncoder) else self.versions.judged(named) from None
