"""Deriving prepared data again from its source, and comparing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tallystick.datasets.commitment import DatasetCommitment
from tallystick.datasets.digits import load_digits
from tallystick.datasets.files import read_file
from tallystick.datasets.opened import open_dataset, read_source, read_tokenizer, text_kind
from tallystick.datasets.prepare import TOKENIZER_FILE, TrainBpe, tokenize
from tallystick.datasets.samples import ExampleDataset, TokenDataset
from tallystick.datasets.sources import TextKind, normalize_newlines, read_corpus
from tallystick.datasets.tokenizer import Tokenizer
from tallystick.datasets.tokens import Tokens, read_tokens
from tallystick.errors import ProofError


def verify_data(folder: Path, commitment: DatasetCommitment, train_bpe: TrainBpe | None = None) -> None:
    """Derive the data in `folder` again: tokens from the source, or the digits from scikit-learn.

    With `train_bpe` given, the tokenizer has to be the one that training on the source makes.

    Raises:
        ProofError: naming the file, or the first token, that differs.
    """
    dataset = open_dataset(folder, commitment)
    if isinstance(dataset, ExampleDataset):
        _check_digits(dataset)
        return
    assert isinstance(dataset, TokenDataset)
    corpus = read_corpus(text_kind(commitment), read_source(folder, commitment))
    tokenizer = read_tokenizer(folder, commitment)
    if train_bpe is not None and tokenizer.kind == "bpe":
        _check_training(tokenizer, train_bpe(corpus, tokenizer.vocabulary))
    check_tokens(dataset.tokens, tokenize(tokenizer, corpus))


def verify_tokens(kind: TextKind, source: Path, tokenizer: Tokenizer, tokens: Path) -> None:
    """Tokenize `source` and raise `ProofError` naming the first position at which `tokens` differs."""
    claimed, vocabulary = read_tokens(tokens)
    if vocabulary != tokenizer.vocabulary:
        raise ProofError(f"{tokens.name}: a vocabulary of {vocabulary}, not {tokenizer.vocabulary}")
    corpus = read_corpus(kind, normalize_newlines(kind, read_file(source)))
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
