"""Opening prepared data: nothing is handed out whose digest is not the committed one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tallystick.datasets.records import RecordTree
from tallystick.datasets.samples import Dataset, TokenDataset
from tallystick.datasets.sources import TextKind, normalize_newlines, split_records
from tallystick.datasets.tokenizer import BYTE_TOKENS, TOKENIZER_BYTES_MAX, Tokenizer
from tallystick.datasets.tokens import Tokens, commit_tokens, read_tokens
from tallystick.documents.files import FILE_BYTES_MAX, read_document
from tallystick.errors import MalformedError, ProofError
from tallystick.transcripts.dataset import DatasetCommitment

SOURCE_FILES: Final[dict[TextKind, str]] = {"text": "source.txt", "jsonl": "source.jsonl"}
TOKENIZER_FILE: Final = "tokenizer.json"
TOKENS_FILE: Final = "tokens.bin"


def open_dataset(folder: Path, commitment: DatasetCommitment, sequence: int = 1) -> Dataset:
    """The samples in `folder` after a check of every digest; `sequence` tokens make one window.

    Raises:
        ProofError: naming the file whose content is not the committed one.
        MalformedError: when a file is not what its name says.
        UnavailableError: when a file is missing.
    """
    if commitment.kind == "digits":
        from tallystick.datasets.examples import open_examples

        return open_examples(folder, commitment)
    if commitment.kind == "corpus":
        from tallystick.datasets.corpus_tokens import open_corpus_tokens

        return TokenDataset(open_corpus_tokens(folder, commitment), sequence)
    read_source(folder, commitment)
    tokenizer = read_tokenizer(folder, commitment)
    tokens, vocabulary = open_tokens(folder, commitment)
    if vocabulary != tokenizer.vocabulary:
        raise ProofError(f"{TOKENS_FILE}: a vocabulary of {vocabulary}, not of {tokenizer.vocabulary}")
    return TokenDataset(tokens, sequence)


def read_tokenizer(folder: Path, commitment: DatasetCommitment) -> Tokenizer:
    """The committed tokenizer in `folder`; raises `ProofError` for another one."""
    tokenizer = Tokenizer.from_bytes(read_document(folder / TOKENIZER_FILE, TOKENIZER_BYTES_MAX))
    if tokenizer.digest != commitment.tokenizer:
        raise ProofError(f"{TOKENIZER_FILE}: not the committed tokenizer")
    return tokenizer


def check_stated_tokenizer(tokenizer: Tokenizer, kind: str, vocabulary: int) -> None:
    """Raise `ProofError` where a tokenizer cannot be the one of a recipe, whatever it was trained on."""
    if tokenizer.kind != kind:
        raise ProofError(f"{TOKENIZER_FILE}: of kind {tokenizer.kind}, where the recipe states {kind}")
    if tokenizer.vocabulary > max(vocabulary, BYTE_TOKENS):
        raise ProofError(f"{TOKENIZER_FILE}: {tokenizer.vocabulary} tokens, where the recipe allows {vocabulary}")


def open_tokens(folder: Path, commitment: DatasetCommitment) -> tuple[Tokens, int]:
    """The committed tokens in `folder` and the size of their vocabulary; raises `ProofError` for others."""
    tokens, vocabulary = read_tokens(folder / TOKENS_FILE)
    if commit_tokens(tokens, vocabulary) != commitment.tokens:
        raise ProofError(f"{TOKENS_FILE}: not the committed tokens")
    return tokens, vocabulary


def read_source(folder: Path, commitment: DatasetCommitment) -> bytes:
    """The committed source in `folder`; raises `ProofError` for another one."""
    kind = text_kind(commitment)
    data = read_document(folder / SOURCE_FILES[kind], FILE_BYTES_MAX)
    if normalize_newlines(kind, data) != data:
        raise MalformedError(f"{SOURCE_FILES[kind]}: its lines do not end with LF alone")
    if RecordTree.of(kind, split_records(kind, data)).commit != commitment.source:
        raise ProofError(f"{SOURCE_FILES[kind]}: not the committed source")
    return data


def text_kind(commitment: DatasetCommitment) -> TextKind:
    """The kind of the source of data that has a text."""
    assert commitment.kind in ("text", "jsonl")
    return commitment.kind
