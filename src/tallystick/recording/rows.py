"""Turns conversations into rows, finds the rows of a batch, and what else a recording is given beside the loop."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final, Self

import numpy as np
from numpy.typing import NDArray

from tallystick.core.canonical_json import Json
from tallystick.core.digests import Digest, Hash, digest, tree_root
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import require_empty_folder, write_atomically
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import State, Tensor, in_dtype
from tallystick.engines.torch.training.trainer import Trainer
from tallystick.engines.torch.wrappers import Ema
from tallystick.formats.data.corpus import Corpus, hash_shards, list_shards
from tallystick.formats.data.rows import (
    COMMITTED_FILES,
    LEAVES_FILE,
    MASK,
    RECIPE_FILE,
    ROWS_FILE,
    STARTS_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    CommittedRows,
    Labelled,
    Row,
    RowsRecipe,
    lay_row,
    leaves_bytes,
    leaves_of_batch,
    order_of,
    parts_of,
    read_rows,
    row_leaf,
    starts_bytes,
    starts_of,
)
from tallystick.formats.data.texts import read_conversations
from tallystick.formats.spec import Origin
from tallystick.formats.store.directories import open_origin
from tallystick.formats.store.keeping import ALL_HERE, AnchorKeeping
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.boundary import warn
from tallystick.verdicts.first_weights import compare_first_weights

# Labelled conversations in a file, written one after the other and read in any order.

ITEM: Final = np.dtype("<i4")


class RowSpool:
    """Holds conversations in the order in which they are added; in memory it keeps 8 bytes of each."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._ends = file, array("q", [0])

    def add(self, each: Labelled) -> None:
        """Write one conversation behind the others."""
        self._file.write(np.concatenate([each.tokens, each.labels]).astype(ITEM).tobytes())
        self._ends.append(self._ends[-1] + each.tokens.size)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> Labelled:
        start, end = self._ends[number], self._ends[number + 1]
        self._file.seek(2 * ITEM.itemsize * start)
        held = np.frombuffer(self._file.read(2 * ITEM.itemsize * (end - start)), ITEM).astype(np.int64)
        return Labelled(held[: end - start], held[end - start :])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each conversation."""
        ends = np.array(self._ends, np.int64)
        return ends[1:] - ends[:-1]


# Turns a corpus of conversations into rows, and finds the rows of a batch while a training is recorded.

NO_ROWS = "the audit cannot say which data it was"


def write_rows(corpus: Path, model: Path, out: Path, **settings: object) -> RowsRecipe:
    """Write the rows of a corpus of conversations into the folder `out`; `settings` are fields of `RowsRecipe`.

    Conversations are read once and rows written one by one: what is held of a corpus is 8 bytes a conversation, and 40
    a row.

    Raises:
        UsageError: `out` is not empty.
        MalformedError: a shard, the tokenizer or the template is not what it should be, or a setting is unknown.
        UnavailableError: a file or a library is missing.
    """
    from tallystick.engines.tokenizers import ChatFiles  # raises where a library is missing

    require_empty_folder(out)
    files = ChatFiles(model)
    tokenizer, template = files.digests
    found = Corpus.of(each.shard for each in hash_shards(list_shards(corpus), None)).corpus
    named: dict[str, Json] = {"corpus": found, "tokenizer": tokenizer, "template": template, "pad": files.pad}
    draft = _drafted({**named, **settings})  # type: ignore[dict-item]
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=out) as file:
        spool = RowSpool(file)
        for messages in read_conversations(corpus, draft.field):
            spool.add(files.labelled(messages, draft))
        recipe = _write_spooled(spool, out, draft)
    for name, content in ((TOKENIZER_FILE, files.tokenizer), (TEMPLATE_FILE, files.template)):
        write_atomically(out / name, content)
    write_atomically(out / RECIPE_FILE, recipe.to_bytes())
    return recipe


def _drafted(stated: dict[str, Json]) -> RowsRecipe:
    """The recipe before anything was counted."""
    uncounted: dict[str, Json] = {"count": 1, "root": "0" * 64}
    if stated.get("packing") is not None:
        uncounted |= {"conversations": 1, "starts": digest("blob", b"")}
    given: dict[str, Json] = {name: value for name, value in stated.items() if value is not None}
    return RowsRecipe.from_json({**uncounted, **given}, "rows")


def _write_spooled(spool: RowSpool, out: Path, draft: RowsRecipe) -> RowsRecipe:
    if not len(spool):
        raise MalformedError("the corpus holds no conversation")
    if draft.packing is not None and not spool.lengths.all():
        raise MalformedError(f"conversation {int(np.argmin(spool.lengths))} gives no token: leave it out to pack rows")
    total = {"count": len(spool)} if draft.packing is None else {"conversations": len(spool)}
    order = order_of(draft.model_copy(update=total))
    starts = starts_of(spool.lengths[order].tolist(), draft)
    rows = (lay_row([spool[int(each)] for each in order[a:b]], draft) for a, b in pairwise(starts))
    leaves = _write_parts(rows, len(starts) - 1, out, draft)
    counted: dict[str, object] = {**total, "count": len(leaves), "root": tree_root(leaves).hex()}
    if draft.packing is not None:
        content = starts_bytes(starts[:-1])
        write_atomically(out / STARTS_FILE, content)
        counted["starts"] = digest("blob", content)
    write_atomically(out / LEAVES_FILE, leaves_bytes(leaves))
    return draft.model_copy(update=counted)


def _write_parts(rows: Iterable[Row], count: int, out: Path, draft: RowsRecipe) -> tuple[Hash, ...]:
    """Write the rows through files that the system can take out of memory; their leaf hashes."""
    with TemporaryDirectory(dir=out) as folder:
        kinds = {part: np.uint8 if part == MASK else np.int32 for part in parts_of(draft)}
        sides = (count, draft.length)
        held = {part: np.memmap(Path(folder, part), kind, "w+", shape=sides) for part, kind in kinds.items()}
        leaves = []
        for place, row in enumerate(rows):
            leaves.append(row_leaf(row, draft))
            for part, values in held.items():
                values[place] = row[part]
        write_state(out / ROWS_FILE, {part: Tensor.of(values) for part, values in held.items()})
    return tuple(leaves)


class RowFinder:
    """Finds the positions of a batch's rows among committed rows, and says once where there are none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows: CommittedRows = read_rows(folder)
        self._places: dict[Hash, int] = {leaf: place for place, leaf in enumerate(self.rows.leaves)}
        self._said = False

    def keep(self, run: RunDirectory) -> Digest:
        """Copy what commits to the rows into a run; the digest of the rows recipe."""
        run.data_path.mkdir(parents=True, exist_ok=True)
        for name in COMMITTED_FILES:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, run.data_path / name)
        return self.rows.recipe.identity

    def positions(self, batch: State) -> tuple[int, ...] | None:
        """Where the rows of a batch stand; `None`, after one warning, where one of them is no row."""
        leaves = leaves_of_batch(batch, self.rows.recipe)
        found = [self._places.get(leaf) for leaf in leaves or ()]
        places = tuple(place for place in found if place is not None)
        if leaves and len(places) == len(leaves):
            return places
        if not self._said:
            self._said = True
            parts = ", ".join(parts_of(self.rows.recipe))
            held = "a row of it is none of them" if leaves else f"it holds not only {parts}"
            warn(f"a batch is not of the rows of {self._folder}: {held}; {NO_ROWS}")
        return None


# What a recording is given beside the loop: the checkpoint and the rows that it names, and where anchors are kept.


@dataclass(frozen=True)
class Attachments:
    """What is given of the origin of the first weights, the rows of the batches and the averages; and the anchors."""

    origin: Origin | None = None
    rows: RowFinder | None = None
    keeping: AnchorKeeping = ALL_HERE
    ema: Ema | None = None

    @classmethod
    def open(cls, initial: str | Path | None, data: str | Path | None, keep: str | None, anchors: str | None) -> Self:
        """Open the directories that a user names.

        Raises `UsageError` for a `keep` that is none, `UnavailableError` where `initial` holds no weights or `data` no
        rows.
        """
        return cls(
            None if initial is None else open_origin(Path(initial)),
            None if data is None else RowFinder(Path(data)),
            AnchorKeeping.of(keep, anchors),
        )


NOTHING: Final = Attachments()


# Where the first weights of a training come from: stated in its spec after a comparison, or loaded into a trainer.


def stated_digest(origin: Origin, state: State) -> Digest | None:
    """The digest for the spec if `state` holds the weights of the origin; otherwise a warning, and None."""
    found = compare_first_weights(state, origin.weights)
    if found.agrees:
        return origin.digest
    what = f"{found.differing[0]} differs" if found.differing else f"it holds nowhere {found.missing[0]}"
    warn(f"the run does not state that it began with {origin.path}: {what}; load the model from there before recording")
    return None


def begin_with(trainer: Trainer, origin: Origin) -> None:
    """Give a trainer at its first step the weights of an origin, in the trainer's precision.

    Raises `UnavailableError` where the model of the recipe is not that of the origin.
    """
    state = dict(trainer.state())
    found = compare_first_weights(state, origin.weights)
    for place, wanted in found.places.items():
        given = in_dtype(wanted, state[place].dtype)
        if given is None or given.shape != state[place].shape:
            ours, theirs = (f"{each.dtype} {list(each.shape)}" for each in (state[place], wanted))
            raise UnavailableError(f"{origin.path}: {place} is {theirs}, and {ours} in the recipe's model")
        state[place] = given
    if found.missing:
        raise UnavailableError(f"{origin.path}: the recipe's model has no {found.missing[0]}")
    trainer.restore(state)
