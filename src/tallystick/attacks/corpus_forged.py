"""The run on a corpus is made again on tokens that do not come from the shards it commits to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tallystick.attacks.attack import Attack, Forger, accepted, rejected
from tallystick.attacks.forging import copy_data, recipe_of
from tallystick.datasets.corpus_files import read_corpus_commit
from tallystick.datasets.corpus_preparation import encoder_of
from tallystick.datasets.corpus_tokens import CORPUS_FILE, TOKENIZER_FILE, TOKENS_LIST, CorpusTokens, token_path
from tallystick.datasets.tokens import Tokens, commit_tokens, read_tokens, write_tokens
from tallystick.errors import UsageError
from tallystick.frameworks.tokenizer_files import TokenizerFile
from tallystick.recorders.training import TrainingRun
from tallystick.store.run import RunDirectory
from tallystick.transcripts.dataset import DatasetCommitment
from tallystick.transcripts.spec import Spec

Exchange = Callable[[Tokens, int], np.ndarray]
"""Makes other tokens of those of a shard; the second argument is the token that ends documents."""


def retrained_on(exchange: Exchange) -> Forger:
    """A forger that trains honestly on other tokens of the first shard, under the commit of the honest corpus."""

    def forge(run: Path, out: Path) -> None:
        spec = RunDirectory(run).spec()
        if spec.data is None or spec.data.kind != "corpus":
            raise UsageError("this forgery exchanges tokens of a shard, and the data of this run is no corpus")
        recipe, forged = recipe_of(spec), copy_data(run, out)
        content = (forged.data_path / TOKENIZER_FILE).read_bytes()
        end = int(encoder_of(recipe.tokenizer, content, TokenizerFile).encode([""])[-1])
        data = _exchanged(forged.data_path, spec.data, lambda tokens: exchange(tokens, end))
        TrainingRun(forged, Spec.of(recipe, data)).record()

    return forge


def _exchanged(
    folder: Path, commitment: DatasetCommitment, exchange: Callable[[Tokens], np.ndarray]
) -> DatasetCommitment:
    """The commitment after the tokens of the first shard were exchanged in `folder`; that to the shards is kept."""
    listed = CorpusTokens.from_bytes((folder / TOKENS_LIST).read_bytes())
    path = token_path(folder, 0)
    tokens, vocabulary = read_tokens(path)
    write_tokens(path, exchange(np.array(tokens)), vocabulary)
    first = replace(listed.shards[0], root=commit_tokens(*read_tokens(path)).root)
    listed = replace(listed, shards=(first, *listed.shards[1:]))
    (folder / TOKENS_LIST).write_bytes(listed.to_bytes())
    return replace(commitment, tokens=listed.commit(read_corpus_commit(folder / CORPUS_FILE)))


def of_another_shard(tokens: Tokens, _end: int) -> np.ndarray:
    """As many tokens of other documents: the same ones in reverse."""
    return tokens[::-1]


def with_two_documents_swapped(tokens: Tokens, end: int) -> np.ndarray:
    """The first two documents in the places of each other."""
    ends = np.flatnonzero(tokens == end)[:2] + 1
    return np.concatenate([tokens[ends[0] : ends[1]], tokens[: ends[0]], tokens[ends[1] :]])


def with_one_token_exchanged(tokens: Tokens, _end: int) -> np.ndarray:
    """The first token is another one."""
    return np.concatenate([tokens[:1] ^ 1, tokens[1:]])


UNREAD = "the screens do not read the shards"
FOUND = rejected("tokens of the corpus")


def _attack(name: str, change: str, exchange: Exchange) -> Attack:
    return Attack(
        name=name,
        change=change,
        forge=retrained_on(exchange),
        screens=accepted(UNREAD),
        exact=FOUND,
        tolerant=FOUND,
        reference="corpus",
    )


ATTACKS = (
    _attack(
        "corpus-shard-replaced",
        "the run on a corpus is made anew on other documents in the place of a whole shard",
        of_another_shard,
    ),
    _attack(
        "corpus-documents-swapped",
        "the run on a corpus is made anew with two documents of a shard in the places of each other",
        with_two_documents_swapped,
    ),
    _attack(
        "corpus-tokens-forged",
        "the run on a corpus is made anew with one token of a shard exchanged",
        with_one_token_exchanged,
    ),
)
