"""Data of a run that are not those it commits to: tokens, tokenizer, shards of a corpus, or rows of conversations."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from research.attacks.graphs import program_of, remake
from tallystick.core.digests import Digest, tree_root
from tallystick.core.errors import UsageError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.engines.tokenizers import TokenizerFile, train_bpe
from tallystick.formats.data.corpus import read_corpus_commit
from tallystick.formats.data.preparation import SOURCE_FILES, TOKENS_FILE, encoder_of
from tallystick.formats.data.rows import (
    LABELS,
    LEAVES_FILE,
    MASK,
    POSITIONS,
    RECIPE_FILE,
    TOKENS,
    UNTRAINED,
    Row,
    leaves_bytes,
    read_rows,
    row_leaf,
)
from tallystick.formats.data.tokenizer import Tokenizer, Tokens, commit_tokens, read_tokens, tokenize, write_tokens
from tallystick.formats.data.tokens import CORPUS_FILE, TOKENIZER_FILE, TOKENS_LIST, CorpusTokens, token_path
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.records import Batch, StepRecord, batch_file
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.training import Config, TrainingRun, train
from tallystick.tally.attacks.forging import (
    Forger,
    copy_data,
    copy_run,
    find_scene,
    read_records,
    recipe_of,
    write_records,
)

# The tokens of a run, with or without a new commitment.


def data_file_edited(run: Path, out: Path) -> None:
    """Exchange one token in the file of tokens."""
    _exchange_tokens(copy_run(run, out).data_path, lambda tokens: np.concatenate([tokens[:1] == 0, tokens[1:]]))


def data_recommitted(run: Path, out: Path) -> None:
    """Train honestly from the same recipe on a text whose lines are in reverse order."""
    honest = RunDirectory(run)
    source = next(honest.data_path.glob("source.*"), None)
    if source is None:
        raise UsageError("this forgery rewrites a source, and the data of this run is not text")
    lines = source.read_bytes().splitlines(keepends=True)
    with TemporaryDirectory() as folder:
        other = Path(folder) / source.name
        other.write_bytes(b"".join(reversed(lines)))
        train(Config(recipe_of(honest.spec()), other), out)


def tokens_not_of_the_source(run: Path, out: Path) -> None:
    """Train honestly on tokens that were not derived from the committed source."""
    forged = copy_data(run, out)
    _exchange_tokens(forged.data_path, lambda tokens: tokens[::-1])
    _train_on_the_tokens(RunDirectory(run).spec(), forged)


def tokenizer_of_other_text(run: Path, out: Path) -> None:
    """Train honestly on the committed source, with a tokenizer that was trained on another text."""
    spec = RunDirectory(run).spec()
    recipe, forged = recipe_of(spec), copy_data(run, out)
    source = (forged.data_path / SOURCE_FILES["text"]).read_text("utf-8")
    other = train_bpe(source.swapcase(), recipe.tokenizer.vocabulary)
    (forged.data_path / TOKENIZER_FILE).write_bytes(other.to_bytes())
    write_tokens(forged.data_path / TOKENS_FILE, tokenize(other, source), other.vocabulary)
    _train_on_the_tokens(spec, forged)


def _exchange_tokens(data: Path, exchange: Callable[[np.ndarray], np.ndarray]) -> None:
    path = data / TOKENS_FILE
    if not path.is_file():
        raise UsageError("this forgery exchanges tokens, and the data of this run is not text")
    tokens, vocabulary = read_tokens(path)
    write_tokens(path, exchange(np.array(tokens)), vocabulary)


def _train_on_the_tokens(spec: Spec, forged: RunDirectory) -> None:
    """Train on the tokens and the tokenizer that are there now, under a commitment that keeps the old source."""
    data = forged.data_path
    assert isinstance(spec.data, DatasetCommitment)  # a run without data was refused
    tokenizer = Tokenizer.from_bytes((data / TOKENIZER_FILE).read_bytes(), TOKENIZER_FILE)
    tokens = commit_tokens(*read_tokens(data / TOKENS_FILE))
    commitment = spec.data.model_copy(update={"tokens": tokens, "tokenizer": tokenizer.identity})
    TrainingRun(forged, Spec.of(recipe_of(spec), commitment)).record()


# The run on a corpus is made again on tokens that do not come from the shards it commits to.

TokenExchange = Callable[[Tokens, int], np.ndarray]
"""Makes other tokens of those of a shard; the second argument is the token that ends documents."""


def retrained_on_tokens(exchange: TokenExchange) -> Forger:
    """A forger that trains honestly on other tokens of the first shard, under the commit of the honest corpus."""

    def forge(run: Path, out: Path) -> None:
        spec = RunDirectory(run).spec()
        if spec.data is None or spec.data.kind != "corpus":
            raise UsageError("this forgery exchanges tokens of a shard, and the data of this run is no corpus")
        recipe, forged = recipe_of(spec), copy_data(run, out)
        content = (forged.data_path / TOKENIZER_FILE).read_bytes()
        end = int(encoder_of(recipe.tokenizer, content, TokenizerFile).encode([""])[-1])
        folder, path = forged.data_path, token_path(forged.data_path, 0)
        listed = CorpusTokens.from_bytes((folder / TOKENS_LIST).read_bytes(), TOKENS_LIST)
        tokens, vocabulary = read_tokens(path)
        write_tokens(path, exchange(np.array(tokens), end), vocabulary)
        first = listed.shards[0].model_copy(update={"root": commit_tokens(*read_tokens(path)).root})
        listed = listed.model_copy(update={"shards": (first, *listed.shards[1:])})
        (folder / TOKENS_LIST).write_bytes(listed.to_bytes())
        tokens_of_all = listed.commit(read_corpus_commit(folder / CORPUS_FILE))
        data = spec.data.model_copy(update={"tokens": tokens_of_all})
        TrainingRun(forged, Spec.of(recipe, data)).record()

    return forge


def with_two_documents_swapped(tokens: Tokens, end: int) -> np.ndarray:
    """The first two documents in the places of each other."""
    ends = np.flatnonzero(tokens == end)[:2] + 1
    return np.concatenate([tokens[ends[0] : ends[1]], tokens[: ends[0]], tokens[ends[1] :]])


corpus_shard_replaced = retrained_on_tokens(lambda tokens, _: tokens[::-1])
corpus_documents_swapped = retrained_on_tokens(with_two_documents_swapped)
corpus_tokens_forged = retrained_on_tokens(lambda tokens, _: np.concatenate([tokens[:1] ^ 1, tokens[1:]]))


# A run on rows of conversations is made again on rows that the conversations do not give.

Rows = dict[int, Row]
"""Rows by their places."""
RowExchange = Callable[[Rows], Rows]
"""Other rows for some of the places."""


def retrained_on(exchange: RowExchange) -> Forger:
    """A forger that trains honestly on other rows, under a root that is made anew, from the stated corpus and files."""

    def forge(run: Path, out: Path) -> None:
        with TemporaryDirectory() as folder:
            staged = _staged(run, Path(folder))
            given = exchange(_rows_of(staged))
            committed, spec = read_rows(staged.data_path), staged.spec()
            leaves = list(committed.leaves)
            for place, row in given.items():
                leaves[place] = row_leaf(row, committed.recipe)
            recipe = committed.recipe.model_copy(update={"root": tree_root(leaves).hex()})
            (staged.data_path / LEAVES_FILE).write_bytes(leaves_bytes(leaves))
            (staged.data_path / RECIPE_FILE).write_bytes(recipe.to_bytes())
            _feed(staged, lambda _, place: given.get(place))
            program = program_of(staged.path)
            remake(staged.path, out, program, program, spec.model_copy(update={"rows": recipe.identity}))

    return forge


def rows_exchanged(run: Path, out: Path) -> None:
    """Train one step on the row of another one, under the record that names its own."""
    with TemporaryDirectory() as folder:
        staged = _staged(run, Path(folder))
        step, rows = find_scene(staged).step, _rows_of(staged)
        named = {record.index: record.batch.indices or () for record in _steps(staged)}
        other = next(place for place in named[step + 1] if place not in named[step])
        _feed(staged, lambda at, place: rows[other] if (at, place) == (step, named[step][0]) else None)
        program = program_of(staged.path)
        remake(staged.path, out, program, program)


def with_a_label_unmasked(rows: Rows) -> Rows:
    """The first token without a label, behind the beginning of a conversation, has one."""
    for place, row in sorted(rows.items()):
        kept = row[MASK] if MASK in row else row[POSITIONS] > 0
        masked = np.flatnonzero((row[LABELS] == UNTRAINED) & (kept > 0))
        if masked.size > 1:
            labels = row[LABELS].copy()
            labels[masked[1]] = row[TOKENS][masked[1]]
            return {place: {**row, LABELS: labels}}
    raise UsageError("this forgery unmasks a label, and every token of these rows has one")


def in_another_order(rows: Rows) -> Rows:
    """The first two rows in the places of each other."""
    one, other = _two(sorted(rows))
    return {one: rows[other], other: rows[one]}


def of_another_tokenizer(rows: Rows) -> Rows:
    """A tokenizer that has the two most frequent tokens in the places of each other."""
    seen = np.concatenate([row[TOKENS][row[LABELS] != UNTRAINED] for row in rows.values()])
    one, other = _two([int(token) for token in np.argsort(-np.bincount(seen))])
    swapped = {one: other, other: one}

    def spelled(values: np.ndarray) -> np.ndarray:
        return np.array([swapped.get(int(value), int(value)) for value in values], np.int64)

    return {place: {**row, TOKENS: spelled(row[TOKENS]), LABELS: spelled(row[LABELS])} for place, row in rows.items()}


def _two(numbers: list[int]) -> list[int]:
    if len(numbers) < 2:
        raise UsageError("this forgery exchanges two rows or tokens, and this run has fewer")
    return numbers[:2]


def _staged(run: Path, folder: Path) -> RunDirectory:
    """A copy of a run on rows; raises `UsageError` for another run."""
    if RunDirectory(run).spec().rows is None:
        raise UsageError("this forgery exchanges rows, and this run states none")
    shutil.copytree(run, folder / "run")
    return RunDirectory(folder / "run")


def _steps(run: RunDirectory) -> Iterator[StepRecord]:
    return (each for each in read_records(run) if isinstance(each, StepRecord) and each.batch.indices is not None)


def _rows_of(run: RunDirectory) -> Rows:
    """The rows that the steps of a run were trained on."""
    rows: Rows = {}
    for record in _steps(run):
        batch = read_state(run.path / batch_file(_digest(record)))
        for name, number, place in _lines(batch, record):
            rows.setdefault(place, {})[name.rpartition(".")[2]] = batch[name].array()[number].astype(np.int64)
    return rows


def _feed(run: RunDirectory, row_of: Callable[[int, int], Row | None]) -> None:
    """Put rows into the batches of a run; `row_of` gives the row of a step at a place, `None` for that of the batch."""
    records = read_records(run)
    for at, record in enumerate(records):
        if not isinstance(record, StepRecord) or record.batch.indices is None:
            continue
        batch = read_state(run.path / batch_file(_digest(record)))
        arrays = {name: tensor.array().copy() for name, tensor in batch.items()}
        for name, number, place in _lines(batch, record):
            if (row := row_of(record.index, place)) is not None:
                arrays[name][number] = row[name.rpartition(".")[2]]
        changed = {name: Tensor.of(array) for name, array in arrays.items()}
        digest = state_digest(changed)
        write_state(run.path / batch_file(digest), changed)
        records[at] = record.model_copy(update={"batch": Batch(digest=digest, indices=record.batch.indices)})
    write_records(run, records)


def _lines(batch: Mapping[str, Tensor], record: StepRecord) -> Iterator[tuple[str, int, int]]:
    """Each line of the tables of a batch: the name of its tensor, its number there, and the place of its row."""
    groups = sorted(
        {name.rpartition(".")[0] for name in batch}, key=lambda group: int(group) if group.isdigit() else -1
    )
    places, used = record.batch.indices or (), 0
    for group in groups:
        tables = [name for name, tensor in batch.items() if tensor.shape and name.rpartition(".")[0] == group]
        count = batch[tables[0]].shape[0] if tables else 0
        yield from ((name, number, places[used + number]) for name in tables for number in range(count))
        used += count


def _digest(record: StepRecord) -> Digest:
    assert record.batch.digest is not None  # a record that names rows names its batch
    return record.batch.digest


rows_label_unmasked = retrained_on(with_a_label_unmasked)
rows_in_another_order = retrained_on(in_another_order)
rows_of_another_tokenizer = retrained_on(of_another_tokenizer)
