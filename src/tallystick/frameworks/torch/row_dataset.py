"""`tallystick.rows`: rows of a corpus as the `train_dataset` of a Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tallystick.datasets.row_layout import parts_of
from tallystick.datasets.rows import ROWS_FILE, read_rows
from tallystick.tensors.safetensors import StateFile


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
