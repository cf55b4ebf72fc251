"""The names of the values of a training step, and whether the masks of its batch leave anything out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import numpy as np

from tallystick.core.tensors import State, Tensor

Value = TypeVar("Value")
WEIGHTS: Final = "weights."
AVERAGE: Final = "ema."
UPDATED: Final = "updated."
"""The weight as the optimizer leaves it, by parameter: an output of a step that writes into weights after that."""
STATE_PREFIXES: Final = ("weights.", "buffers.", "optimizer.", AVERAGE, "position.")
BATCH: Final = "inputs."
POSITION: Final = "position.step"
"""The tensor of every state that counts the steps taken: I64, without dimensions."""
SEED: Final = "rng.seed"
"""The input of a graph from which its random numbers follow: the key of a Philox stream, I64[2]."""
GENERATOR: Final = "position.generator"
"""The tensor that holds the state of PyTorch's generator, where steps draw from it: I64 [625]."""
GENERATOR_MOVE: Final = "generator_move"
"""The tensor of a batch that says how the generator was moved before the step: I64 [2], a seed or -1, and words."""
AVERAGED: Final = "position.averaged"
"""The tensor that counts the updates of averages, where the loop counts them: I64, without dimensions."""
STEP_SLOT: Final = ".step"


def weights_of(state: Mapping[str, Value]) -> dict[str, Value]:
    """The weights in a state, under the names that the model gives them."""
    return {name.removeprefix(WEIGHTS): value for name, value in state.items() if name.startswith(WEIGHTS)}


def parameter_of(name: str) -> str:
    """The parameter that a weight, a weight before an edit, or a slot of the state belongs to; else empty."""
    kind, _, rest = name.partition(".")
    return {"weights": rest, "updated": rest, "optimizer": rest.rpartition(".")[0]}.get(kind, "")


# Whether the masks of a batch leave anything out: libraries compute attention otherwise where they do not.
#
# Where every token counts, and where no row holds several texts, a model of transformers makes no mask and asks fused
# attention to be causal, which rounds otherwise than the same mask would. So the step of such a batch is another
# program than that of a padded or packed one.

INTEGERS = frozenset({"BOOL", "U8", "I8", "I16", "I32", "I64"})


def full_masks(batch: State) -> frozenset[str]:
    """The names of the masks that are full: tables of integers or booleans, and all of them ones.

    Positions are full where they count up in each row, for then it holds one text.
    """
    tables = {name: each for name, each in batch.items() if each.dtype in INTEGERS and len(each.shape) == 2}
    return frozenset(name for name, each in tables.items() if _is_full(name, each))


def _is_full(name: str, table: Tensor) -> bool:
    if name.endswith("position_ids"):
        return bool(np.all(np.diff(table.array().astype(np.int64), axis=1) == 1))
    return bool(np.all(table.array() == 1))
