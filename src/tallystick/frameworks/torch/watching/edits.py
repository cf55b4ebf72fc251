"""What a loop writes into its gradients before the optimizer's step, or into its weights after it, as a function.

The calls that were watched are made again on the tensors of a step: clipping in any norm, by value or of some
parameters, centralised gradients, clamped or normalised weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.watching.calls import LoopCall, places
from tallystick.frameworks.torch.watching.live_calls import sources_of
from tallystick.frameworks.torch.watching.operator_log import Seen
from tallystick.frameworks.torch.watching.watched_loss import bound

UNSCALED: Final = "a GradScaler scales the loss; compute in bfloat16, which needs none"
RANDOM: Final = "random numbers are written into {} ({}); record the loop without them"
ELSEWHERE: Final = "what is written into {} depends on {} of before; record the loop without it"
NOT_ALONE: Final = (
    "{} is called on tensors of several shapes or kinds, and cannot be captured; call it on one at a time"
)
FOREACH: Final = "_foreach_"
ALONE: Final = {"norm": "linalg_vector_norm"}
"""What an operator on lists is called on one tensor, where the names differ."""


@dataclass(frozen=True)
class WatchedEdit:
    """Calls that write to tensors of a step.

    `named` are the names that tensors have before them, and `results` the tensors that have a name after them.
    `reads_back` means that the loop has read numbers from tensors meanwhile: they are constants of the calls.
    """

    calls: Sequence[LoopCall]
    named: Mapping[int, str]
    results: Mapping[str, int]
    constants: Mapping[int, torch.Tensor]
    reads_back: bool

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors that are written to, as they are after it; those that are given stay as they are."""
        values = {number: self._begun(name, tensors) for number, name in self.named.items()} | {**self.constants}
        for call in self.calls:
            args, kwargs = call.filled(values)
            values |= dict(bound(call.results, _called(call, args, kwargs)))
        return {name: values[number] for name, number in self.results.items()}

    def _begun(self, name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return tensors[name].clone() if name in self.results else tensors[name]


def edit_of(
    calls: Sequence[LoopCall], seen: Sequence[Seen], before: Mapping[int, str], after: Mapping[str, int], what: str
) -> WatchedEdit | None:
    """The edit that calls make of tensors with names; `None` where they write to none of those in `after`.

    Args:
        calls: all those from the moment of `before` to that of `after`.
        seen: what is known of the tensors.
        before: the names of tensors by number.
        after: the numbers of the tensors that may have been written to, by name.
        what: "gradients" or "weights", for a reason.

    Raises `UnavailableError` with the reason if the calls are no function of tensors with names.
    """
    storages = {seen[number].storage for number in after.values()}
    numbers = {name: number for number, name in before.items()}
    is_other = {name for name, number in after.items() if numbers.get(name) != number}
    if not is_other and not any(call.written & storages for call in calls):
        return None
    live = _live(calls, seen, {*after.values()}, storages, before)
    _require_repeatable(live, what)
    sources = [number for number in sources_of(live, next(iter(after.values()))) if number not in before]
    written = frozenset[int]().union(*(call.written for call in live))
    changed = {name: number for name, number in after.items() if name in is_other or seen[number].storage in written}
    read = {place.number for call in live for place in call.operands} | {*changed.values()}
    return WatchedEdit(
        live,
        {number: name for number, name in before.items() if number in read},
        changed,
        {number: _constant(seen[number], what) for number in sources if number in read},
        any(call.name == "aten._local_scalar_dense.default" for call in calls),
    )


def _live(
    calls: Sequence[LoopCall], seen: Sequence[Seen], needed: set[int], storages: set[int], before: Mapping[int, str]
) -> list[LoopCall]:
    """The calls on which the tensors `needed` depend, and what lies in `storages`."""
    found: list[LoopCall] = []
    for call in reversed(calls):
        if needed & {place.number for place in places(call.results)} - before.keys() or call.written & storages:
            found.append(call)
            read = {place.number for place in call.operands}
            needed |= read
            storages |= {seen[number].storage for number in read}
    return found[::-1]


def _require_repeatable(calls: Sequence[LoopCall], what: str) -> None:
    if any("_amp_" in call.name for call in calls):
        raise UnavailableError(UNSCALED)
    if drawn := next((call.name for call in calls if call.is_random), None):
        raise UnavailableError(RANDOM.format(what, drawn))


def _constant(seen: Seen, what: str) -> torch.Tensor:
    if not seen.from_elsewhere or seen.value is None:
        raise UnavailableError(ELSEWHERE.format(what, f"a tensor of shape {seen.shape}"))
    return seen.value


def _called(call: LoopCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a call; one on lists is made tensor by tensor, as the CPU does."""
    name = str(call.target._schema.name).partition("::")[2]
    if not name.startswith(FOREACH):
        return call.target(*args, **kwargs)
    alone, in_place = name.removeprefix(FOREACH).removesuffix("_"), name.endswith("_")
    target = getattr(torch.ops.aten, ALONE.get(alone, alone) + ("_" if in_place else ""), None)
    if target is None:
        raise UnavailableError(NOT_ALONE.format(call.name))
    made = [target(*each, **kwargs) for each in _one_by_one(args)]
    return None if in_place else made


def _one_by_one(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for index in range(len(args[0])):
        yield tuple(each[index] if isinstance(each, list | tuple) else each for each in args)
