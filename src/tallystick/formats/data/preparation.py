"""Preparing data for a run: tokenized, stored in one folder, committed to, and opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, UsageError
from tallystick.core.files import FILE_BYTES_MAX, read_document, write_atomically
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.formats.data.corpus import Corpus, Hashed, ShardFile, hash_shards, list_shards, silent
from tallystick.formats.data.corpus_files import notes_path, read_notes, write_commit
from tallystick.formats.data.records import RecordTree, TextKind, normalize_newlines, read_corpus, split_records
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
    tokenized. `done` is told how many more bytes were tokenized.

    Raises:
        MalformedError: for a shard of no known kind, a document that is none, or another tokenizer than the stated one.
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
        raise MalformedError(f"{path.name}: not the tokenizer that the recipe states (tokenizer.identity)")
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
