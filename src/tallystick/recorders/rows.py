"""Turns a corpus of conversations into rows, and finds the rows of a batch while a training is recorded."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import numpy as np

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import Json
from tallystick.commitments.tree import Hash, tree_root
from tallystick.datasets.conversations import read_conversations
from tallystick.datasets.corpus import Corpus
from tallystick.datasets.row_layout import MASK, Row, lay_row, parts_of, starts_of
from tallystick.datasets.rows import (
    COMMITTED_FILES,
    LEAVES_FILE,
    RECIPE_FILE,
    ROWS_FILE,
    STARTS_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    CommittedRows,
    leaves_bytes,
    leaves_of_batch,
    order_of,
    read_rows,
    row_leaf,
    starts_bytes,
)
from tallystick.datasets.shards import hash_shards, list_shards
from tallystick.documents.files import write_atomically
from tallystick.documents.targets import require_empty_folder
from tallystick.errors import MalformedError
from tallystick.recorders.boundary import say
from tallystick.recorders.row_spool import RowSpool
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.rows import RowsRecipe

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
    from tallystick.frameworks.chat_rows import ChatFiles  # raises where a library is missing

    require_empty_folder(out)
    files = ChatFiles(model)
    tokenizer, template = files.digests
    found = Corpus(tuple(each.shard for each in hash_shards(list_shards(corpus), None))).commit.digest
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
            say(f"a batch is not of the rows of {self._folder}: {held}; {NO_ROWS}")
        return None
