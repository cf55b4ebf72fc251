"""Where the first weights of a training come from: stated in its spec after a comparison, or loaded into a trainer."""

from __future__ import annotations

from tallystick.commitments.digests import Digest
from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.training.trainer import Trainer
from tallystick.judging.first_weights import compare_first_weights
from tallystick.recorders.boundary import say
from tallystick.tensors.conversion import in_dtype
from tallystick.tensors.tensor import State
from tallystick.workloads.origin import Origin


def stated_digest(origin: Origin, state: State) -> Digest | None:
    """The digest for the spec if `state` holds the weights of the origin; otherwise a warning, and None."""
    found = compare_first_weights(state, origin.weights)
    if found.agrees:
        return origin.digest
    what = f"{found.differing[0]} differs" if found.differing else f"it holds nowhere {found.missing[0]}"
    say(f"the run does not state that it began with {origin.path}: {what}; load the model from there before recording")
    return None


def begin_with(trainer: Trainer, origin: Origin) -> None:
    """Give a trainer at its first step the weights of an origin, in the trainer's precision.

    Raises `UnavailableError` where the model of the recipe is not that of the origin.
    """
    state = dict(trainer.state())
    found = compare_first_weights(state, origin.weights)
    for place, wanted in found.places.items():
        given = in_dtype(wanted, state[place].dtype)
        if given is None or given.shape != state[place].shape:
            ours, theirs = (f"{each.dtype} {list(each.shape)}" for each in (state[place], wanted))
            raise UnavailableError(f"{origin.path}: {place} is {theirs}, and {ours} in the recipe's model")
        state[place] = given
    if found.missing:
        raise UnavailableError(f"{origin.path}: the recipe's model has no {found.missing[0]}")
    trainer.restore(state)
