"""Deriving prepared data again from its source, and comparing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tallystick.datasets.bpe import TrainBpe, make_tokenizer, tokenize
from tallystick.datasets.examples import load_digits
from tallystick.datasets.opened import (
    TOKENIZER_FILE,
    check_stated_tokenizer,
    open_dataset,
    open_tokens,
    read_source,
    read_tokenizer,
    text_kind,
)
from tallystick.datasets.samples import ExampleDataset
from tallystick.datasets.sources import TextKind, normalize_newlines, read_corpus
from tallystick.datasets.tokenizer import Tokenizer, TokenizerKind
from tallystick.datasets.tokens import Tokens, read_tokens
from tallystick.documents.files import FILE_BYTES_MAX, read_document
from tallystick.errors import ProofError, UnavailableError
from tallystick.transcripts.dataset import DatasetCommitment

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
    pairs = zip(claimed.merges, trained.merges, strict=False)
    at = next((rank for rank, (left, right) in enumerate(pairs) if left != right), len(trained.merges))
    raise ProofError(f"{TOKENIZER_FILE}: merge {at} is not the one that training on the source gives")


def _check_digits(claimed: ExampleDataset) -> None:

    images, labels = load_digits()
    if claimed.images.shape != images.shape:
        raise ProofError(f"the examples have shape {claimed.images.shape}, but the digits {images.shape}")
    same = (claimed.labels == labels) & (claimed.images == images).all(axis=(1, 2, 3))
    if not same.all():
        raise ProofError(f"example {int(np.argmin(same))} is not that of the digits")
