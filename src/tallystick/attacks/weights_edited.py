"""The weights are changed after the last step, together with everything that is written about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.forging import anchor_before, copy_run, find_scene, read_anchor, replace_anchor
from tallystick.tensors.tensor import State, Tensor

SHARE_OF_MOVE = 0.1
SHARE_BELOW_DRIFT = 3e-6


def forge(run: Path, out: Path) -> None:
    """Undo a tenth of every weight's last move."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    before = read_anchor(forged, anchor_before(forged, last))
    replace_anchor(forged, last, take_back(before, read_anchor(forged, last)))


def forge_below_drift(run: Path, out: Path) -> None:
    """Undo so little of every weight's last move that another stack could cause the difference."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    before = read_anchor(forged, anchor_before(forged, last))
    replace_anchor(forged, last, take_back(before, read_anchor(forged, last), share=SHARE_BELOW_DRIFT))


def forge_one_ulp(run: Path, out: Path) -> None:
    """Move one weight to the next number that float32 can hold."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    state = read_anchor(forged, last)
    name = largest_weight(state)
    values = np.array(state[name].array())
    values.flat[0] = np.nextafter(values.flat[0], np.float32(np.inf))
    replace_anchor(forged, last, state | {name: Tensor.of(values)})


def forge_sign_of_zero(run: Path, out: Path) -> None:
    """Change the sign of one zero in the optimizer's memory."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    state = read_anchor(forged, last)
    name = next(name for name, tensor in state.items() if name.endswith(".exp_avg") and not tensor.array().all())
    values = np.array(state[name].array())
    values.flat[int(np.argmin(values != 0))] = -0.0
    replace_anchor(forged, last, state | {name: Tensor.of(values)})


def take_back(
    before: State, state: State, after: State | None = None, share: float = SHARE_OF_MOVE
) -> dict[str, Tensor]:
    """The state with a fraction of each weight's last move undone; no bound on moves can detect this.

    If the anchor `after` it is given, only weights that turned around here are changed, so both moves get shorter.
    """
    return {
        name: _taken_back(before[name], tensor, after[name] if after else None, share)
        if name.startswith("weights.")
        else tensor
        for name, tensor in state.items()
    }


def largest_weight(state: State) -> str:
    """The weight tensor with the most elements."""
    return max((name for name in state if name.startswith("weights.")), key=lambda name: state[name].nbytes)


def _taken_back(before: Tensor, tensor: Tensor, after: Tensor | None, share: float) -> Tensor:
    values = tensor.array()
    move = values - before.array()
    if after is not None:
        move = np.where((after.array() - values) * move < 0, move, 0)
    return Tensor.of((values - share * move).astype(values.dtype))


BELOW_DRIFT = "an honest run on another stack would differ as much; only a replay on the prover's stack can tell"

ATTACKS = (
    Attack(
        name="weights-edited",
        change="the final weights are edited after training; anchor, summaries, roots and claim are made anew",
        forge=forge,
        screens=accepted("every weight moved a little less than it did, which is always within reach"),
        exact=rejected("state", "projection summary"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="weights-edited-below-drift",
        change="3e-6 of every weight's last move is taken back; anchor, summaries, roots and claim are made anew",
        forge=forge_below_drift,
        screens=accepted("every weight moved a little less than it did, which is always within reach"),
        exact=rejected("state"),
        tolerant=accepted(BELOW_DRIFT),
    ),
    Attack(
        name="weights-edited-by-one-ulp",
        change="one final weight is moved to the next float32; anchor, summaries, roots and claim are made anew",
        forge=forge_one_ulp,
        screens=accepted("one unit in the last place is below everything a screen measures"),
        exact=rejected("state"),
        tolerant=accepted(BELOW_DRIFT),
    ),
    Attack(
        name="sign-of-a-zero",
        change="one zero of the optimizer's memory is made a negative zero at the end, and everything written anew",
        forge=forge_sign_of_zero,
        screens=accepted("no number has changed"),
        exact=rejected("state"),
        tolerant=accepted("limits compare numbers, and -0.0 is 0.0; the report says so"),
        reference="gpt2",
    ),
)
