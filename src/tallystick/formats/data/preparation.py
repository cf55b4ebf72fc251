"""Data prepared for a run: tokenized, stored in one folder, committed to, opened again, and derived again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import FILE_BYTES_MAX, read_document, write_atomically
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.formats.data.corpus import (
    Corpus,
    Hashed,
    ShardFile,
    check_shard,
    find_shard,
    hash_shards,
    list_shards,
    notes_path,
    read_leaves,
    read_notes,
    silent,
    write_commit,
)
from tallystick.formats.data.records import RecordTree, TextKind, normalize_newlines, read_corpus, shown, split_records
from tallystick.formats.data.samples import (
    EXAMPLES_FILE,
    Dataset,
    ExampleDataset,
    TokenDataset,
    encode_examples,
    load_digits,
    open_examples,
)
from tallystick.formats.data.texts import read_texts, reader_of
from tallystick.formats.data.tokenizer import (
    BYTE_TOKENS,
    BYTES,
    TOKENIZER_BYTES_MAX,
    BytesEncoder,
    Encoder,
    ReadEncoder,
    Tokenizer,
    TokenizerKind,
    Tokens,
    TrainBpe,
    batches,
    commit_tokens,
    make_tokenizer,
    read_tokens,
    tokenize,
    write_tokens,
)
from tallystick.formats.data.tokens import (
    CORPUS_FILE,
    TOKENIZER_FILE,
    TOKENS_LIST,
    CorpusTokens,
    open_corpus_tokens,
    open_shard_tokens,
    read_run_corpus,
    read_tokenizer_file,
    read_tokens_list,
    token_path,
    write_shard_tokens,
)
from tallystick.formats.dataset import DatasetCommitment, RecordCommit
from tallystick.formats.recipe import Recipe, TokenizerRecipe

# Opening prepared data: nothing is handed out whose digest is not the committed one.

SOURCE_FILES: Final[dict[TextKind, str]] = {"text": "source.txt", "jsonl": "source.jsonl"}
TOKENS_FILE: Final = "tokens.bin"


def open_dataset(folder: Path, commitment: DatasetCommitment, sequence: int = 1) -> Dataset:
    """The samples in `folder` after a check of every digest; `sequence` tokens make one window.

    Raises:
        ProofError: naming the file whose content is not the committed one.
        MalformedError: when a file is not what its name says.
        UnavailableError: when a file is missing.
    """
    if commitment.kind == "digits":
        return open_examples(folder, commitment)
    if commitment.kind == "corpus":
        return TokenDataset(open_corpus_tokens(folder, commitment), sequence)
    read_source(folder, commitment)
    tokenizer = read_tokenizer(folder, commitment)
    tokens, vocabulary = open_tokens(folder, commitment)
    if vocabulary != tokenizer.vocabulary:
        raise ProofError(f"{TOKENS_FILE}: a vocabulary of {vocabulary}, not of {tokenizer.vocabulary}")
    return TokenDataset(tokens, sequence)


def read_tokenizer(folder: Path, commitment: DatasetCommitment) -> Tokenizer:
    """The committed tokenizer in `folder`; raises `ProofError` for another one."""
    tokenizer = Tokenizer.from_bytes(read_document(folder / TOKENIZER_FILE, TOKENIZER_BYTES_MAX), TOKENIZER_FILE)
    if tokenizer.identity != commitment.tokenizer:
        raise ProofError(f"{TOKENIZER_FILE}: not the committed tokenizer")
    return tokenizer


def check_stated_tokenizer(folder: Path, commitment: DatasetCommitment, recipe: TokenizerRecipe) -> None:
    """Raise `ProofError` where the tokenizer in `folder` cannot be the one of a recipe, whatever it was trained on."""
    if commitment.kind == "corpus":
        if commitment.tokenizer != (recipe.digest or digest("blob", BYTES.to_bytes())):
            raise ProofError(f"{TOKENIZER_FILE}: not the tokenizer that the recipe states")
        return
    tokenizer = read_tokenizer(folder, commitment)
    if tokenizer.kind != recipe.kind:
        raise ProofError(f"{TOKENIZER_FILE}: of kind {tokenizer.kind}, where the recipe states {recipe.kind}")
    if tokenizer.vocabulary > max(recipe.vocabulary, BYTE_TOKENS):
        raise ProofError(
            f"{TOKENIZER_FILE}: {tokenizer.vocabulary} tokens, where the recipe allows {recipe.vocabulary}"
        )


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


# Preparing a corpus for a run: its shards hashed where they are, and tokenized shard by shard into the run.


def prepare_corpus(
    recipe: Recipe,
    directory: Path,
    tokenizer: Path | None,
    folder: Path,
    read_encoder: ReadEncoder,
    done: Hashed = silent,
) -> DatasetCommitment:
    """Hash the shards below `directory`, write their tokens into `folder`, and commit to both.

    The shards stay where they are. Those that `tally commit` noted are not hashed again; each is read once more to be
    tokenized. `done` is called with the number of bytes just tokenized.

    Raises:
        MalformedError: for a shard of no known kind, a malformed document, or a tokenizer that is not the stated one.
        UnavailableError: when a file cannot be read or written, or a library is missing.
        UsageError: when the tokenizer is not named.
    """
    files = list_shards(directory)
    for file in files:
        reader_of(file.name)
    content = _read_tokenizer(recipe.tokenizer, tokenizer)
    encoder = encoder_of(recipe.tokenizer, content, read_encoder)
    known = read_notes(notes_path(directory.resolve().parent / "commit.json"))
    hashed = list(hash_shards(files, known))
    corpus = Corpus.of(made.shard for made in hashed)
    tokens = _write_tokens(files, recipe, encoder, folder, done)
    write_commit(folder / CORPUS_FILE, corpus, hashed)
    write_atomically(folder / TOKENIZER_FILE, content)
    write_atomically(folder / TOKENS_LIST, tokens.to_bytes())
    return DatasetCommitment(
        kind="corpus", source=corpus.commit, tokenizer=digest("blob", content), tokens=tokens.commit(corpus)
    )


def encoder_of(recipe: TokenizerRecipe, content: bytes, read_encoder: ReadEncoder) -> Encoder:
    """The encoder that a recipe states, with the file of its tokenizer."""
    return BytesEncoder() if recipe.end is None else read_encoder(content, recipe.end)


def stated_vocabulary(recipe: TokenizerRecipe, encoder: Encoder) -> int:
    """The vocabulary of the tokens: that of the encoder, or a larger one that the recipe states."""
    return max(recipe.vocabulary, encoder.vocabulary)


def _write_tokens(files: list[ShardFile], recipe: Recipe, encoder: Encoder, folder: Path, done: Hashed) -> CorpusTokens:
    vocabulary, shards = stated_vocabulary(recipe.tokenizer, encoder), []
    for index, file in enumerate(files):
        texts = read_texts(file, recipe.data.text_field)
        shards.append(write_shard_tokens(token_path(folder, index), texts, encoder, vocabulary))
        done(file.size)
    return CorpusTokens(vocabulary=vocabulary, shards=tuple(shards))


def _read_tokenizer(recipe: TokenizerRecipe, path: Path | None) -> bytes:
    if recipe.digest is None:
        return BYTES.to_bytes()
    if path is None:
        raise UsageError("the recipe states a tokenizer made elsewhere: name its file (tokenizer.path)")
    content = read_document(path, TOKENIZER_BYTES_MAX)
    if digest("blob", content) != recipe.digest:
        raise MalformedError(f"{path.name}: not the tokenizer that the recipe states (tokenizer.digest)")
    return content


# Preparing data for a run: normalised, tokenized, stored in one folder, and committed to.
#
# source.txt | source.jsonl    the normalised source
# tokenizer.json tokens.bin    how it was tokenized, and the tokens
# examples.safetensors         images and labels, where the data is the digits


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
        train_bpe: trains a tokenizer, such as `tallystick.engines.tokenizers.train_bpe`.

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
    return DatasetCommitment(kind=kind, source=records.commit, tokenizer=tokenizer.identity, tokens=committed)


def commit_source(kind: TextKind, path: Path) -> RecordCommit:
    """The root and the number of the records of a text or JSONL file; raises what `prepare` raises."""
    data = normalize_newlines(kind, read_document(path, FILE_BYTES_MAX))
    return RecordTree.of(kind, split_records(kind, data)).commit


def _prepare_digits(folder: Path) -> DatasetCommitment:
    examples = ExampleDataset(*load_digits())
    arrays = {"images": Tensor.of(examples.images), "labels": Tensor.of(examples.labels)}
    write_state(folder / EXAMPLES_FILE, arrays)
    return DatasetCommitment(kind="digits", source=RecordTree.of("arrays", encode_examples(examples)).commit)


# Prepared data derived again from its source or corpus, and compared.

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


def check_tokens(claimed: Tokens, parts: Iterable[NDArray[np.integer[Any]]], giver: str) -> None:
    """Raise `ProofError` naming the first place at which the claimed tokens are not those of `parts`, in order."""
    at = 0
    for made in parts:
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
        """Hash and tokenize the shards `indices` again; `done` is called with the number of bytes just hashed.

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
