"""Exchanging the tokens of a run, with or without committing to the new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tallystick.datasets import DatasetCommitment, commit_tokens, read_tokens, write_tokens
from tallystick.errors import UsageError

TOKENS_FILE = "tokens.bin"


def forge_tokens(data: Path, exchange: Callable[[np.ndarray], np.ndarray]) -> None:
    """Rewrite the file of tokens; raises `UsageError` where the data has none."""
    path = data / TOKENS_FILE
    if not path.is_file():
        raise UsageError("this forgery exchanges tokens, and the data of this run is not text")
    tokens, vocabulary = read_tokens(path)
    write_tokens(path, exchange(np.array(tokens)), vocabulary)


def commit_again(data: Path, commitment: DatasetCommitment) -> DatasetCommitment:
    """The commitment with the tokens that stand in `data` now, and the source and tokenizer it named before."""
    return replace(commitment, tokens=commit_tokens(*read_tokens(data / TOKENS_FILE)))
