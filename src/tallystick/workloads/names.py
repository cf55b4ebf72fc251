"""How the values of a step are named: the state it reads and writes, its batch, and the counters in the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

Value = TypeVar("Value")
WEIGHTS: Final = "weights."
STATE_PREFIXES: Final = ("weights.", "buffers.", "optimizer.", "position.")
BATCH: Final = "inputs."
POSITION: Final = "position.step"
"""The tensor of every state that counts the steps taken: I64, without dimensions."""
STEP_SLOT: Final = ".step"


def weights_of(state: Mapping[str, Value]) -> dict[str, Value]:
    """The weights in a state, under the names that the model gives them."""
    return {name.removeprefix(WEIGHTS): value for name, value in state.items() if name.startswith(WEIGHTS)}
