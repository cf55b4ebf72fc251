"""Preparing data for a run: normalised, tokenized, stored in one folder, and committed to.

source.txt | source.jsonl    the normalised source
tokenizer.json tokens.bin    how it was tokenized, and the tokens
examples.safetensors         images and labels, where the data is the digits
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tallystick.datasets.bpe import TrainBpe, make_tokenizer, tokenize
from tallystick.datasets.examples import EXAMPLES_FILE, encode_examples, load_digits
from tallystick.datasets.opened import SOURCE_FILES, TOKENIZER_FILE, TOKENS_FILE
from tallystick.datasets.records import RecordTree
from tallystick.datasets.samples import ExampleDataset
from tallystick.datasets.sources import TextKind, normalize_newlines, read_corpus, split_records
from tallystick.datasets.tokenizer import TokenizerKind
from tallystick.datasets.tokens import commit_tokens, write_tokens
from tallystick.documents.files import FILE_BYTES_MAX, read_document, write_atomically
from tallystick.errors import UsageError
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.dataset import DatasetCommitment, RecordCommit


def prepare(
    kind: TextKind | Literal["digits"],
    source: Path | None,
    folder: Path,
    *,
    tokenization: TokenizerKind = "bytes",
    vocabulary: int = 256,
    train_bpe: TrainBpe | None = None,
) -> DatasetCommitment:
    """Normalise, tokenize and store `source` in `folder`, and commit to all of it.

    Args:
        kind: what the source is; the digits have none.
        source: the text or JSONL file.
        folder: where the files of the data are written.
        tokenization: single bytes, or byte-pair encoding trained on the source.
        vocabulary: the largest vocabulary that training may make.
        train_bpe: trains a tokenizer, such as `tallystick.frameworks.tokenizers.train_bpe`.

    Raises:
        MalformedError: when the source is not of its kind.
        UnavailableError: when a file cannot be read or written, or a library is missing.
        UsageError: when source or trainer are missing.
    """
    if kind == "digits":
        return _prepare_digits(folder)
    if source is None:
        raise UsageError(f"data of kind {kind} needs a source file")
    data = normalize_newlines(kind, read_document(source, FILE_BYTES_MAX))
    records = RecordTree.of(kind, split_records(kind, data))
    corpus = read_corpus(kind, data)
    tokenizer = make_tokenizer(corpus, tokenization, vocabulary, train_bpe)
    tokens = tokenize(tokenizer, corpus)
    write_atomically(folder / SOURCE_FILES[kind], data)
    write_atomically(folder / TOKENIZER_FILE, tokenizer.to_bytes())
    write_tokens(folder / TOKENS_FILE, tokens, tokenizer.vocabulary)
    committed = commit_tokens(tokens, tokenizer.vocabulary)
    return DatasetCommitment(kind, records.commit, tokenizer.digest, committed)


def commit_source(kind: TextKind, path: Path) -> RecordCommit:
    """The root and the number of the records of a text or JSONL file; raises what `prepare` raises."""
    data = normalize_newlines(kind, read_document(path, FILE_BYTES_MAX))
    return RecordTree.of(kind, split_records(kind, data)).commit


def _prepare_digits(folder: Path) -> DatasetCommitment:
    examples = ExampleDataset(*load_digits())
    arrays = {"images": Tensor.of(examples.images), "labels": Tensor.of(examples.labels)}
    write_state(folder / EXAMPLES_FILE, arrays)
    return DatasetCommitment("digits", RecordTree.of("arrays", encode_examples(examples)).commit)
