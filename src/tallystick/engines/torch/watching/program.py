"""What a watched step computes, as functions: its loss, its edits of gradients and weights, its clipping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch

from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.capture.export import enter_module, tensors_of
from tallystick.engines.torch.watching.operator_log import LoopCall, Place, Seen, mapped, places

# Selects the calls of a watched step that a tensor depends on, and finds equal values among them.

COPIES: Final = frozenset(
    f"aten.{name}.default" for name in ("alias", "clone", "detach", "lift_fresh", "lift_fresh_copy", "_to_copy")
)
"""Operators whose result has the values of the operand, where the dtype is the same."""


def live_calls(
    calls: Sequence[LoopCall], seen: Sequence[Seen], root: int, buffers: Set[int], given: Set[int], span: range
) -> list[LoopCall]:
    """The calls before the end of `span` on which tensor `root` depends, in their order.

    A call that writes to the storage of a tensor that is read later is one of them, and so is every write in `span` to
    a storage of `buffers`, which the step leaves behind; what a buffer was before `span` is an input. Nothing before
    the tensors `given` is needed: they are inputs too.
    """
    needed, storages, found = {root}, set[int](), list[LoopCall]()
    for index in reversed(range(span.stop)):
        call = calls[index]
        results = {place.number for place in places(call.results)} - given
        left = storages | buffers if index in span else storages - buffers
        is_next_word = call.is_seeded and index in span  # a draw that nothing reads moves the stream too
        if results & needed or call.written & left or is_next_word:
            found.append(call)
            read = {place.number for place in call.operands} - given
            needed |= read
            storages |= {seen[number].storage for number in read}
    return found[::-1]


def sources_of(calls: Iterable[LoopCall], root: int) -> list[int]:
    """The tensors that calls read and none of them creates, in the order of reading."""
    made, found = set[int](), dict[int, None]()
    for call in calls:
        read = [place.number for place in call.operands]
        found |= dict.fromkeys(number for number in read if number not in made)
        made |= {place.number for place in places(call.results)} - found.keys()
    return [*found] if root in made or root in found else [*found, root]


@dataclass(frozen=True)
class EqualValues:
    """Which tensors of a watched step hold equal values, because the same operator was called on equal values.

    A storage that is written to in the step equals no other, nor does one that is not filled yet.
    """

    calls: Sequence[LoopCall]
    seen: Sequence[Seen]
    _first: dict[Any, int] = field(default_factory=dict)

    def first(self, number: int) -> int:
        """The first tensor that holds the value of tensor `number`."""
        return self._canonical.get(number, number)

    def same_as(self, number: int) -> set[int]:
        """The tensors of which tensor `number` is a copy, itself included, each as its first."""
        found = {self.first(number)}
        while (source := self._copied.get(number)) is not None and self.first(source) not in found:
            number = source
            found.add(self.first(number))
        return found

    @cached_property
    def _canonical(self) -> dict[int, int]:
        written = frozenset[int]().union(*(call.written for call in self.calls))
        first, canonical = dict[Any, int](), dict[int, int]()

        def named(place: Place) -> str:
            return f"tensor {canonical.get(place.number, place.number)} after {place.writes} writes"

        for call in self.calls:
            results = [place.number for place in places(call.results)]
            if (
                call.is_random
                or "empty" in call.name
                or not results
                or any(self.seen[number].storage in written for number in results)
            ):
                continue
            key = repr((call.name, mapped((call.args, dict(call.kwargs)), Place, named)))
            for index, number in enumerate(results):
                canonical.setdefault(number, first.setdefault((key, index), number))
        return canonical

    @cached_property
    def _copied(self) -> Mapping[int, int]:
        """The operand of each copy by its result."""
        found = dict[int, int]()
        for call in self.calls:
            if call.name in COPIES:
                (made, *_), (read, *_) = list(places(call.results)), list(call.operands)
                if self.seen[made.number].dtype == self.seen[read.number].dtype and made.number != read.number:
                    found[made.number] = read.number
        return found


# The loss of a watched step as a function of model and batch: it calls the operators that the loop called.


@dataclass(frozen=True)
class WatchedLoss:
    """The calls that lead to the loss, and what the tensors are that none of them creates.

    `held` names parameters and buffers as `live_tensors` does, `given` the tensors of the batch. Autograd derives the
    loop's backward pass from these calls, because they are the ones it saw.
    """

    calls: Sequence[LoopCall]
    held: Mapping[int, str]
    given: Mapping[int, str]
    constants: Mapping[int, torch.Tensor]
    root: int
    fixed: tuple[str, ...] = ()
    """What the constants are, in words: tensors that come from elsewhere."""

    @cached_property
    def form(self) -> Any:
        """The calls without the numbers of this step: equal for two losses that are computed alike."""
        order: dict[int, int] = {}

        def renumbered(place: Place) -> int:
            return order.setdefault(place.number, len(order))

        calls = [
            (call.name, mapped((call.args, dict(call.kwargs), call.results), Place, renumbered)) for call in self.calls
        ]
        sources = sorted((order.get(number, -1), name) for number, name in (*self.held.items(), *self.given.items()))
        values = sorted((order.get(number, -1), value.tolist()) for number, value in self.constants.items())
        return repr((calls, order.get(self.root, -1), sources, values))

    def __call__(self, model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The loss of `model`, or of a stand-in that is called like it."""
        tensors = tensors_of(model)
        values = {number: tensors[name] for number, name in self.held.items()}
        values |= {number: batch[name] for number, name in self.given.items()}
        values |= self.constants
        module = None
        for call in self.calls:
            if call.module != module:
                module = call.module
                enter_module(model, module)
            args, kwargs = call.filled(values)
            with torch.set_grad_enabled(call.with_gradient):
                results = call.target(*args, **kwargs)
            values |= dict(bound(call.results, results))
        return values[self.root]


def bound(named: Any, results: Any) -> list[tuple[int, torch.Tensor]]:
    """The results of a call by their numbers."""
    if isinstance(named, Place):
        return [(named.number, results)]
    if isinstance(named, list | tuple):
        return [pair for name, result in zip(named, results, strict=True) for pair in bound(name, result)]
    return []


# What a loop writes into its gradients before the optimizer's step, or into its weights after it, as a function.
#
# The calls that were watched are made again on the tensors of a step: clipping in any norm, by value or of some
# parameters, centralised gradients, clamped or normalised weights.

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
        values = {**self.constants}
        for number, name in self.named.items():
            values[number] = tensors[name].clone() if name in self.results else tensors[name]
        for call in self.calls:
            args, kwargs = call.filled(values)
            values |= dict(bound(call.results, _called(call, args, kwargs)))
        return {name: values[number] for name, number in self.results.items()}


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
    if any("_amp_" in call.name for call in live):
        raise UnavailableError(UNSCALED)
    if drawn := next((call.name for call in live if call.is_random), None):
        raise UnavailableError(RANDOM.format(what, drawn))
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
    made = []
    for index in range(len(args[0])):
        alone_args = [each[index] if isinstance(each, list | tuple) else each for each in args]
        made.append(target(*alone_args, **kwargs))
    return None if in_place else made


# Finds in the watched calls to what norm a loop clips its gradients, if it calls `clip_grad_norm_` as most do.

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
