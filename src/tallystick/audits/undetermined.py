"""Weights that no replay determines: Adam scales a gradient that is only rounding error up to a full step.

A bias in front of a batch norm, or the key bias of attention, has no effect on the loss. Its gradient is zero but
for rounding, and Adam turns it into steps of full size in a direction that differs from stack to stack. Such elements
are known by their second moment in the verifier's own replay; what they may do is left to the reach screen.

A second moment can also be small because nothing was learned for long: the embedding of a token that no batch of the
segment holds has no gradient at all, on any stack. Its second moment only decays, its weight follows from the anchor,
and it is judged like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.tolerance import Finding

State = Mapping[str, Tensor]
Mask = np.ndarray
SECOND_MOMENT = ".exp_avg_sq"
NOISE = {"fp32": 2.0**-15, "bf16": 2.0**-9}
"""A root of the second moment below this share of the model's is rounding: 2⁹ units of roundoff, or one of bf16."""
SHARE_ALLOWED = {"fp32": 0.05, "bf16": 0.25}
"""Where more elements are undetermined, agreement of the others says too little for a verdict."""
UPDATE_FACTOR = 4.0
POSITION = "position.step"
DECAY_ROUNDING = 4 * 2.0**-24
"""Of one float32 step, relative to the second moment: what a decay without any gradient may round."""


def find_undetermined(replayed: State, dtype: str, start: State | None = None, decay: float = 0.0) -> dict[str, Mask]:
    """Where the gradients of a replay were rounding only, by parameter; empty for optimizers other than Adam.

    With the state at the `start` of the segment and the `decay` β₂, elements that had no gradient are left out.
    """
    moments = {name: tensor.values() for name, tensor in replayed.items() if name.endswith(SECOND_MOMENT)}
    total = sum(float(np.sum(values, dtype=np.float64)) for values in moments.values())
    count = sum(values.size for values in moments.values())
    noise = NOISE[dtype] ** 2 * total / max(1, count)
    masks = {name: (values > 0) & (values < noise) for name, values in moments.items()}
    if start is not None:
        steps = int(replayed[POSITION].values()) - int(start[POSITION].values())
        masks = {n: mask & ~_only_decayed(start[n].values(), moments[n], steps, decay) for n, mask in masks.items()}
    return {_parameter(name): mask for name, mask in masks.items() if mask.any()}


def _only_decayed(start: np.ndarray, end: np.ndarray, steps: int, decay: float) -> Mask:
    """Where v ≤ β₂ⁿ·v₀ but for rounding: what gradients there were did not even show in the second moment."""
    bound: np.ndarray = decay**steps * start.astype(np.float64) * (1 + DECAY_ROUNDING * steps)
    return np.asarray(end <= bound)


def settle(claimed: State, replayed: State, masks: Mapping[str, Mask]) -> dict[str, Tensor]:
    """The claimed state with every undetermined element taken from the replay."""
    settled = dict(claimed)
    for parameter, mask in masks.items():
        for name in _tensors_of(parameter, replayed):
            if name in claimed and claimed[name].shape == replayed[name].shape == mask.shape:
                values = np.where(mask, replayed[name].array(), claimed[name].array())
                settled[name] = Tensor.of(values, claimed[name].dtype)
    return settled


def judge_share(replayed: State, masks: Mapping[str, Mask], dtype: str) -> Finding:
    """The share of elements that no replay determines."""
    count = sum(math.prod(t.shape) for name, t in replayed.items() if name.endswith(SECOND_MOMENT))
    masked = sum(int(np.count_nonzero(mask)) for mask in masks.values())
    return Finding(masked / max(1, count), SHARE_ALLOWED[dtype], "undetermined", min(masks, default=""))


def share_of_update(start: State, replayed: State, masks: Mapping[str, Mask]) -> float:
    """How much of the replayed update's norm the undetermined elements make up, with room for another direction."""
    if not masks:
        return 0.0
    names = [name for name in replayed if name.startswith("weights.")]
    moves = {name: replayed[name].values().astype(np.float64) - start[name].values() for name in names}
    whole = sum(float(np.square(move).sum()) for move in moves.values())
    part = sum(float(np.square(moves[f"weights.{name}"][mask]).sum()) for name, mask in masks.items())
    return UPDATE_FACTOR * math.sqrt(part / whole) if whole else 0.0


def _parameter(moment: str) -> str:
    return moment.removeprefix("optimizer.").removesuffix(SECOND_MOMENT)


def _tensors_of(parameter: str, state: State) -> list[str]:
    names = (f"weights.{parameter}", f"optimizer.{parameter}.exp_avg", f"optimizer.{parameter}{SECOND_MOMENT}")
    return [name for name in names if name in state]
