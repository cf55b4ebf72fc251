"""Finds in the watched calls to what norm a loop clips its gradients."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.watching.calls import LoopCall, places

TOUCHED: Final = (
    "gradients are changed between backward() and optimizer.step(), and not by clip_grad_norm_; "
    "scaling belongs into the loss, and clip_grad_value_ or noise cannot be replayed"
)
UNSCALED: Final = "a GradScaler scales the loss; compute in bfloat16, which needs none"
SCALED: Final = ("aten._foreach_mul_.Tensor", "aten.mul_.Tensor")
QUOTIENT: Final = ("aten.clamp.default", "aten.mul.Tensor", "aten.reciprocal.default", "aten.add.Tensor")
"""From the factor back to the norm, `clip_grad_norm_` computes clamp(max_norm / (norm + 1e-6), max=1)."""


def clip_norm_of(calls: Sequence[LoopCall], gradients: Set[int]) -> float | None:
    """The limit of `clip_grad_norm_` among the calls between backward pass and optimizer step; `None` without clipping.

    Args:
        calls: those between the two.
        gradients: the storages of the gradients that the optimizer used.

    Raises `UnavailableError` for any other write to a gradient.
    """
    writing = [call for call in calls if call.written & gradients]
    if not writing:
        return None
    if any("_amp_" in call.name for call in writing):
        raise UnavailableError(UNSCALED)
    limits = {_limit(call, calls) for call in writing}
    often = max(sum(storage in call.written for call in writing) for storage in gradients)
    if None in limits or len(limits) > 1 or often > 1:
        raise UnavailableError(TOUCHED)
    return limits.pop()


def _limit(scaling: LoopCall, calls: Sequence[LoopCall]) -> float | None:
    """The `max_norm` behind a multiplication of gradients; `None` for another write."""
    if scaling.name not in SCALED:
        return None
    factor, limit = [*scaling.operands][-1].number, None
    for name in QUOTIENT:
        made = next((call for call in calls if call.name == name and _makes(call, factor)), None)
        if made is None:
            return None
        if name == "aten.mul.Tensor" and isinstance(made.args[1], int | float):
            limit = float(made.args[1])
        factor = next(made.operands).number
    return limit


def _makes(call: LoopCall, number: int) -> bool:
    return any(place.number == number for place in places(call.results))
