"""`tallystick.rows` and `write_rows`: rows of a corpus as the `train_dataset` of a Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tallystick.core.safetensors import StateFile
from tallystick.formats.data.rows import ROWS_FILE, parts_of, read_rows
from tallystick.recording.rows import write_rows as write_folder

# `tallystick.rows`: rows of a corpus as the `train_dataset` of a Trainer.


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


# `tallystick.write_rows`: conversations of a corpus as rows that a Trainer takes.


def write_rows(
    corpus: Path | str, model: Path | str, out: Path | str, *, length: int, **settings: object
) -> RowsDataset:
    """Make rows of the conversations of a corpus, and return them.

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
    write_folder(Path(corpus), Path(model), Path(out), length=length, **settings)
    return RowsDataset(out)
