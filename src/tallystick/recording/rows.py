"""Turns the conversations of a corpus into rows, and gives them to a Trainer."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tallystick.core.canonical_json import Json
from tallystick.core.digests import Hash, digest, tree_root
from tallystick.core.errors import MalformedError
from tallystick.core.files import require_empty_folder, write_atomically
from tallystick.core.safetensors import StateFile, write_state
from tallystick.core.tensors import Tensor
from tallystick.engines.tokenizers import ChatFiles
from tallystick.formats.data.corpus import Corpus, hash_shards, list_shards
from tallystick.formats.data.rows import (
    LEAVES_FILE,
    MASK,
    RECIPE_FILE,
    ROWS_FILE,
    STARTS_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    Labelled,
    Row,
    RowsRecipe,
    lay_row,
    leaves_bytes,
    order_of,
    parts_of,
    read_rows,
    row_leaf,
    starts_bytes,
    starts_of,
)
from tallystick.formats.data.texts import read_conversations

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


# Turns a corpus of conversations into rows.


def write_rows(
    corpus: Path | str, model: Path | str, out: Path | str, *, length: int, **settings: object
) -> RowsDataset:
    """Make rows of the conversations of a corpus, and return them.

    Conversations are read once and rows written one by one: 8 bytes of a conversation and 40 of a row are in memory.

    Args:
        corpus: a directory of shards, JSONL (also compressed) or Parquet; each record holds a list of turns.
        model: the directory whose tokenizer and chat template are used.
        out: a directory that is empty or not there.
        length: the number of tokens of each row; longer conversations are cut, shorter ones padded.
        **settings: `field` (by default "messages"), `trained` ("assistant" or "all"), `seed` of the order, `pad`, and
            `packing` ("apart" or "joined"): several conversations in a row, as many as fit.

    Raises:
        UsageError: `out` is not empty.
        MalformedError: a shard, the tokenizer or the template is not what it should be, or a setting is unknown.
        UnavailableError: a file or a library is missing.
    """
    out = Path(out)
    require_empty_folder(out)
    files = ChatFiles(Path(model))
    tokenizer, template = files.digests
    found = Corpus.of(each.shard for each in hash_shards(list_shards(Path(corpus)), None)).corpus
    named: dict[str, Json] = {
        "corpus": found,
        "tokenizer": tokenizer,
        "template": template,
        "pad": files.pad,
        "length": length,
    }
    draft = _drafted({**named, **settings})  # type: ignore[dict-item]
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=out) as file:
        spool = RowSpool(file)
        for messages in read_conversations(Path(corpus), draft.field):
            spool.add(files.labelled(messages, draft))
        recipe = _write_spooled(spool, out, draft)
    for name, content in ((TOKENIZER_FILE, files.tokenizer), (TEMPLATE_FILE, files.template)):
        write_atomically(out / name, content)
    write_atomically(out / RECIPE_FILE, recipe.to_bytes())
    return RowsDataset(out)


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


# The rows of a folder, as the `train_dataset` of a Trainer.


class RowsDataset(torch.utils.data.Dataset[Any]):
    """Rows of a folder that `write_rows` has made: `input_ids`, `labels` and `attention_mask`, I64[length] each.

    Rows that are packed apart hold `position_ids` in the place of the mask.

    Raises `ProofError` where the folder does not hold the rows of its root.
    """

    def __init__(self, folder: Path | str) -> None:
        self.recipe = read_rows(Path(folder)).recipe
        with StateFile(Path(folder) / ROWS_FILE) as file:
            self._parts = {part: file.tensor(part).array() for part in parts_of(self.recipe)}

    def __len__(self) -> int:
        return self.recipe.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {part: torch.from_numpy(values[index].astype(np.int64)) for part, values in self._parts.items()}


def rows(folder: Path | str) -> RowsDataset:
    """The rows in a folder, as the `train_dataset` of a Trainer."""
    return RowsDataset(folder)
