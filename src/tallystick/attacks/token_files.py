"""Exchanges the tokens of a run, with or without a new commitment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tallystick.datasets.bpe import tokenize
from tallystick.datasets.opened import TOKENIZER_FILE, TOKENS_FILE
from tallystick.datasets.tokenizer import Tokenizer
from tallystick.datasets.tokens import commit_tokens, read_tokens, write_tokens
from tallystick.errors import UsageError
from tallystick.transcripts.dataset import DatasetCommitment


def forge_tokens(data: Path, exchange: Callable[[np.ndarray], np.ndarray]) -> None:
    """Rewrite the file of tokens; raises `UsageError` if the data has none."""
    path = data / TOKENS_FILE
    if not path.is_file():
        raise UsageError("this forgery exchanges tokens, and the data of this run is not text")
    tokens, vocabulary = read_tokens(path)
    write_tokens(path, exchange(np.array(tokens)), vocabulary)


def forge_tokenizer(data: Path, source: str, tokenizer: Tokenizer) -> None:
    """Replace the tokenizer of a run by another one, and its tokens by those that this one makes of the source."""
    (data / TOKENIZER_FILE).write_bytes(tokenizer.to_bytes())
    write_tokens(data / TOKENS_FILE, tokenize(tokenizer, source), tokenizer.vocabulary)


def commit_again(data: Path, commitment: DatasetCommitment) -> DatasetCommitment:
    """The commitment with the tokenizer and tokens that are in `data` now, and with its old source."""
    tokenizer = Tokenizer.from_bytes((data / TOKENIZER_FILE).read_bytes())
    tokens = commit_tokens(*read_tokens(data / TOKENS_FILE))
    return replace(commitment, tokens=tokens, tokenizer=tokenizer.digest)
