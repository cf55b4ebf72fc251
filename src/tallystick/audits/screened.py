"""The tensors of a state that screens look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tallystick.tensors.tensor import Tensor

SCREENED = frozenset({"F32", "F64", "BF16"})
"""Weights in F16 are left out: their second moments underflow, and no bound on a step follows."""

State = Mapping[str, Tensor]


def weights_of(state: State) -> dict[str, Tensor]:
    """The trainable tensors of a state."""
    return {name: tensor for name, tensor in state.items() if name.startswith("weights.")}


def moments_of(state: State) -> Iterator[str]:
    """The names of the second moments."""
    return (name for name in state if name.endswith(".exp_avg_sq") and state[name].dtype in SCREENED)


def screened_weights(state: State) -> Iterator[str]:
    """The names of the weights that may be held to a bound."""
    return (name for name, tensor in weights_of(state).items() if tensor.dtype in SCREENED)
