"""Preparing a corpus for a run: its shards hashed where they are, and tokenized shard by shard into the run."""

from __future__ import annotations

from pathlib import Path

from tallystick.commitments.digests import digest
from tallystick.datasets.corpus import Corpus
from tallystick.datasets.corpus_files import notes_path, read_notes, write_commit
from tallystick.datasets.corpus_tokens import (
    CORPUS_FILE,
    TOKENIZER_FILE,
    TOKENS_LIST,
    CorpusTokens,
    token_path,
    write_shard_tokens,
)
from tallystick.datasets.encoding import BytesEncoder, Encoder, ReadEncoder
from tallystick.datasets.shard_texts import read_texts
from tallystick.datasets.shard_values import reader_of
from tallystick.datasets.shards import Hashed, ShardFile, hash_shards, list_shards, silent
from tallystick.datasets.tokenizer import TOKENIZER_BYTES_MAX, Tokenizer
from tallystick.documents.files import read_document, write_atomically
from tallystick.errors import MalformedError, UsageError
from tallystick.transcripts.dataset import DatasetCommitment
from tallystick.transcripts.recipe import Recipe, TokenizerRecipe


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
    corpus = Corpus(tuple(each.shard for each in hashed))
    tokens = _write_tokens(files, recipe, encoder, folder, done)
    write_commit(folder / CORPUS_FILE, corpus, hashed)
    write_atomically(folder / TOKENIZER_FILE, content)
    write_atomically(folder / TOKENS_LIST, tokens.to_bytes())
    return DatasetCommitment("corpus", corpus.commit, digest("blob", content), tokens.commit(corpus))


def encoder_of(recipe: TokenizerRecipe, content: bytes, read_encoder: ReadEncoder) -> Encoder:
    """The encoder that a recipe states, with the file of its tokenizer."""
    return BytesEncoder() if recipe.end is None else read_encoder(content, recipe.end)


def stated_vocabulary(recipe: TokenizerRecipe, encoder: Encoder) -> int:
    """The vocabulary of the tokens: that of the encoder, or a larger one that the recipe states."""
    return max(recipe.vocabulary, encoder.vocabulary)


def _write_tokens(files: list[ShardFile], recipe: Recipe, encoder: Encoder, folder: Path, done: Hashed) -> CorpusTokens:
    vocabulary, found = stated_vocabulary(recipe.tokenizer, encoder), []
    for index, file in enumerate(files):
        texts = read_texts(file, recipe.data.text_field)
        found.append(write_shard_tokens(token_path(folder, index), texts, encoder, vocabulary))
        done(file.size)
    return CorpusTokens(vocabulary, tuple(found))


def _read_tokenizer(recipe: TokenizerRecipe, path: Path | None) -> bytes:
    if recipe.digest is None:
        return Tokenizer("bytes").to_bytes()
    if path is None:
        raise UsageError("the recipe states a tokenizer made elsewhere: name its file (tokenizer.path)")
    content = read_document(path, TOKENIZER_BYTES_MAX)
    if digest("blob", content) != recipe.digest:
        raise MalformedError(f"{path.name}: not the tokenizer that the recipe states (tokenizer.digest)")
    return content
