"""The weights are changed after the last step, and all that is written about them with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.forging import copy_run, find_scene, read_anchor, replace_anchor
from tallystick.tensors import State, Tensor

SHARE_OF_SPREAD = 0.05


def forge(run: Path, out: Path) -> None:
    """Move every weight by a share of its tensor's spread."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    replace_anchor(forged, last, shake(read_anchor(forged, last)))


def forge_one_ulp(run: Path, out: Path) -> None:
    """Move one weight to the next number that float32 can hold."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    state = read_anchor(forged, last)
    name = largest_weight(state)
    values = np.array(state[name].array())
    values.flat[0] = np.nextafter(values.flat[0], np.float32(np.inf))
    replace_anchor(forged, last, state | {name: Tensor.of(values)})


def shake(state: State) -> dict[str, Tensor]:
    """The state with noise in its weights, and all else as it was."""
    noise = np.random.default_rng(0)
    return {name: _shaken(tensor, noise) if name.startswith("weights.") else tensor for name, tensor in state.items()}


def largest_weight(state: State) -> str:
    """The weight tensor with the most elements."""
    return max((name for name in state if name.startswith("weights.")), key=lambda name: state[name].nbytes)


def _shaken(tensor: Tensor, noise: np.random.Generator) -> Tensor:
    values = tensor.array()
    moved = values + SHARE_OF_SPREAD * values.std() * noise.standard_normal(values.shape)
    return Tensor.of(moved.astype(values.dtype))


ATTACKS = (
    Attack(
        name="weights-edited",
        change="the final weights are edited after training; anchor, summaries, roots and claim are made anew",
        forge=forge,
        screens=accepted("the edit is smaller than what the learning rate allows in a segment"),
        exact=rejected("state", "projection summary"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="weights-edited-by-one-ulp",
        change="one final weight is moved to the next float32; anchor, summaries, roots and claim are made anew",
        forge=forge_one_ulp,
        screens=accepted("one unit in the last place is below everything a screen measures"),
        exact=rejected("state"),
        tolerant=accepted("another stack would honestly differ by more than this"),
    ),
)
