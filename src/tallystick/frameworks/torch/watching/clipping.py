"""Finds in the watched calls to what norm a loop clips its gradients, if it calls `clip_grad_norm_` as most do."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from tallystick.frameworks.torch.watching.calls import LoopCall, places
from tallystick.frameworks.torch.watching.operator_log import Seen

SCALED: Final = ("aten._foreach_mul_.Tensor", "aten.mul_.Tensor")
NORMED: Final = ("aten._foreach_norm.Scalar", "aten.linalg_vector_norm.default")
QUOTIENT: Final = (
    *("aten.clamp.default", "aten.mul.Tensor", "aten.reciprocal.default", "aten.add.Tensor"),
    *("aten.linalg_vector_norm.default", "aten.stack.default"),
)
"""From the factor back: `clip_grad_norm_` computes clamp(max_norm / (norm(stack(norms)) + 1e-6), max=1)."""


def clip_norm_of(calls: Sequence[LoopCall], seen: Sequence[Seen], gradients: Set[int]) -> float | None:
    """The limit of `clip_grad_norm_` over all gradients, in the L2 norm; `None` if the calls are anything else.

    Args:
        calls: those between backward pass and optimizer step.
        seen: what is known of their tensors.
        gradients: the storages of the gradients that the optimizer used.
    """
    writing = [call for call in calls if call.written & gradients]
    written = [storage for call in writing for storage in call.written]
    if not writing or sorted(written) != sorted(gradients):
        return None
    limits = {_limit(call, calls, seen, gradients) for call in writing}
    return limits.pop() if len(limits) == 1 else None


def _limit(scaling: LoopCall, calls: Sequence[LoopCall], seen: Sequence[Seen], gradients: Set[int]) -> float | None:
    """The `max_norm` behind a multiplication of gradients by their L2 norm; `None` for another write."""
    if scaling.name not in SCALED:
        return None
    factor, limit, made = [*scaling.operands][-1].number, None, scaling
    for name in QUOTIENT:
        found = _maker(calls, factor)
        if found is None or found.name != name or not _is_plain(found):
            return None
        if name == "aten.mul.Tensor" and isinstance(found.args[1], int | float):
            limit = float(found.args[1])
        factor, made = next(found.operands).number, found
    norms = [_maker(calls, place.number) for place in made.operands]
    read = {seen[place.number].storage for call in norms if call is not None for place in call.operands}
    is_whole = all(call is not None and call.name in NORMED and _is_plain(call) for call in norms)
    return limit if is_whole and read == gradients else None


def _maker(calls: Sequence[LoopCall], number: int) -> LoopCall | None:
    return next((call for call in calls if any(place.number == number for place in places(call.results))), None)


def _is_plain(call: LoopCall) -> bool:
    """Whether a norm is the L2 norm of all elements; true of any other call."""
    return call.name not in NORMED or (not call.kwargs and [*call.args[1:]] in ([], [2], [2.0]))
