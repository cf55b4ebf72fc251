"""How conversations of tokens lie in rows: one in each, or as many as fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tallystick.transcripts.rows import RowsRecipe

TOKENS, LABELS, MASK, POSITIONS = "input_ids", "labels", "attention_mask", "position_ids"
UNTRAINED: Final = -100
Row = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Labelled:
    """A conversation cut to the length of a row: tokens and labels, of one length."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]


def parts_of(recipe: RowsRecipe) -> tuple[str, str, str]:
    """The names of the tensors of a row, in the order in which they are hashed."""
    return (TOKENS, LABELS, POSITIONS if recipe.packing == "apart" else MASK)


def starts_of(lengths: Iterable[int], recipe: RowsRecipe) -> list[int]:
    """The place of the first conversation of each row, and behind them the number of all: count + 1 numbers.

    A conversation that does not fit behind those before it begins the next row.
    """
    starts, used, number = list[int](), 0, 0
    for number, length in enumerate(lengths, 1):
        if not starts or recipe.packing is None or used + length > recipe.length:
            starts.append(number - 1)
            used = 0
        used += length
    return [*starts, number]


def lay_row(conversations: Sequence[Labelled], recipe: RowsRecipe) -> Row:
    """One row, int64[length] each; the conversations fit into it.

    With `apart` positions begin at 0 in each conversation and in the padding, so that a model which reads them attends
    inside of one; its first token has no label, for it would be asked of the last token of another.
    """
    tokens = np.concatenate([each.tokens for each in conversations])
    labels = np.concatenate([each.labels for each in conversations])
    left = recipe.length - tokens.size
    row = {
        TOKENS: np.pad(tokens, (0, left), constant_values=recipe.pad),
        LABELS: np.pad(labels, (0, left), constant_values=UNTRAINED),
    }
    if recipe.packing != "apart":
        return row | {MASK: np.pad(np.ones(tokens.size, np.int64), (0, left))}
    sizes = [*(each.tokens.size for each in conversations), left]
    positions = np.concatenate([np.arange(size, dtype=np.int64) for size in sizes])
    row[LABELS][positions == 0] = UNTRAINED
    return row | {POSITIONS: positions}
