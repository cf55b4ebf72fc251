"""How the values of a step are named: the state it reads and writes, its batch, and the counters in the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

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
