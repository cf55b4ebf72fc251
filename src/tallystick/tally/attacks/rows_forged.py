"""A run on rows of conversations is made again on rows that the conversations do not give."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tallystick.core.digests import Digest, tree_root
from tallystick.core.errors import UsageError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
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
from tallystick.formats.records import Batch, StepRecord, batch_file
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import Attack, Forger, accepted, find_scene, read_records, rejected, write_records
from tallystick.tally.attacks.honest_twins import HONEST, copy
from tallystick.tally.attacks.step_graphs import program_of, remake

Rows = dict[int, Row]
"""Rows by their places."""
Exchange = Callable[[Rows], Rows]
"""Other rows for some of the places."""


def retrained_on(exchange: Exchange) -> Forger:
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


def forge_exchanged(run: Path, out: Path) -> None:
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
        if (found := np.flatnonzero((row[LABELS] == UNTRAINED) & (kept > 0))[1:]).size:
            labels = row[LABELS].copy()
            labels[found[0]] = row[TOKENS][found[0]]
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


def _two(found: list[int]) -> list[int]:
    if len(found) < 2:
        raise UsageError("this forgery exchanges two rows or tokens, and this run has fewer")
    return found[:2]


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
    found: Rows = {}
    for record in _steps(run):
        held = read_state(run.path / batch_file(_digest(record)))
        for name, number, place in _lines(held, record):
            found.setdefault(place, {})[name.rpartition(".")[2]] = held[name].array()[number].astype(np.int64)
    return found


def _feed(run: RunDirectory, row_of: Callable[[int, int], Row | None]) -> None:
    """Put rows into the batches of a run; `row_of` gives the row of a step at a place, `None` for that of the batch."""
    records = read_records(run)
    for at, record in enumerate(records):
        if not isinstance(record, StepRecord) or record.batch.indices is None:
            continue
        held = read_state(run.path / batch_file(_digest(record)))
        arrays = {name: each.array().copy() for name, each in held.items()}
        for name, number, place in _lines(held, record):
            if (row := row_of(record.index, place)) is not None:
                arrays[name][number] = row[name.rpartition(".")[2]]
        batch = {name: Tensor.of(each) for name, each in arrays.items()}
        digest = state_digest(batch)
        write_state(run.path / batch_file(digest), batch)
        records[at] = record.model_copy(update={"batch": Batch(digest=digest, indices=record.batch.indices)})
    write_records(run, records)


def _lines(held: Mapping[str, Tensor], record: StepRecord) -> Iterator[tuple[str, int, int]]:
    """Each line of the tables of a batch: the name of its tensor, its number there, and the place of its row."""
    groups = sorted({name.rpartition(".")[0] for name in held}, key=lambda each: int(each) if each.isdigit() else -1)
    places, used = record.batch.indices or (), 0
    for group in groups:
        tables = [name for name, each in held.items() if each.shape and name.rpartition(".")[0] == group]
        count = held[tables[0]].shape[0] if tables else 0
        yield from ((name, number, places[used + number]) for name in tables for number in range(count))
        used += count


def _digest(record: StepRecord) -> Digest:
    assert record.batch.digest is not None  # a record that names rows names its batch
    return record.batch.digest


NOT_READ = "the screens read no batch and have no corpus"
NOT_GIVEN = rejected("rows of the corpus")


def _attack(name: str, change: str, exchange: Exchange) -> Attack:
    return Attack(
        name=name,
        change=f"the run on rows is made anew {change}, under the corpus and the tokenizer that it states",
        forge=retrained_on(exchange),
        reference="rows",
        screens=accepted(NOT_READ),
        exact=NOT_GIVEN,
        tolerant=NOT_GIVEN,
    )


ROWS_FORGED = (
    Attack(
        name="rows-exchanged",
        change="one step is taken on the row of another step, and its record names its own; all made anew",
        forge=forge_exchanged,
        reference="rows",
        screens=accepted(NOT_READ),
        exact=rejected("rows"),
        tolerant=rejected("rows"),
    ),
    _attack("rows-label-unmasked", "with a label on a token of the user", with_a_label_unmasked),
    _attack("rows-in-another-order", "with two rows in the places of each other", in_another_order),
    _attack("rows-of-another-tokenizer", "on rows of a tokenizer that spells otherwise", of_another_tokenizer),
    Attack(
        name="rows-as-stated",
        change="nothing; the loop is trained on the rows that its spec states",
        forge=copy,
        reference="rows",
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
        claim=HONEST,
        is_honest=True,
    ),
)
