"""One backward pass of a watched step: the loss behind it, as a function of model and batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.watching.calls import LoopCall, places
from tallystick.frameworks.torch.watching.live_calls import EqualValues, live_calls, sources_of
from tallystick.frameworks.torch.watching.operator_log import OperatorLog
from tallystick.frameworks.torch.watching.watched_loss import WatchedLoss

OWN_GRADIENT: Final = "backward() was not called on one number; call it on the loss"
NOT_IN_BATCH: Final = (
    "the loss depends on {} that is not in batch=; give batch=(inputs, targets), all that the loss reads"
)
RANDOM: Final = (
    "the loss depends on random numbers ({}); turn dropout off (p=0) or give the recorder a seed (`seed=1`), and "
    "give in batch= what the loop itself draws, just as the loss reads it"
)
CHANGED: Final = "{} of the batch was changed after the loss had read it; give the recorder a copy from before"
OF_GRADIENTS: Final = "the loss depends on gradients of the same step (create_graph=True), which is not captured"
UNSCALED: Final = (
    "backward() is called {0} times in the step; divide each loss by {0}, so that their mean is minimised, or add up "
    "losses of the same batch and call it once"
)


@dataclass(frozen=True)
class WatchedBackward:
    """The calls before a backward pass, those in `span` since the pass before it, and the micro-batch of this pass.

    `buffers` are the storages of the model's buffers, and `count` backward passes make a step.
    """

    log: OperatorLog
    equal: EqualValues
    span: range
    batch: Mapping[str, torch.Tensor]
    buffers: Set[int]
    count: int

    def loss(self) -> WatchedLoss:
        """The loss; raises `UnavailableError` with the reason why it is no function of model and batch."""
        log, root, live = self.log, self._root, self._live
        sources = sources_of(live, root)
        if names := sorted({call.name for call in live if call.is_random and not call.is_seeded}):
            raise UnavailableError(RANDOM.format(names[0]))
        given = {number: name for number in sources if (name := self._name(number))}
        self._require_unchanged(live, given)
        held = {number: log.held[number] for number in sources if number in log.held}
        constants = {number: self._constant(number) for number in sources if number not in given.keys() | held.keys()}
        fixed = [_described(value) for value in constants.values() if value.numel()]
        return WatchedLoss(live, held, given, constants, root, tuple(fixed))

    @property
    def reads(self) -> set[int]:
        """The tensors that the loss depends on, those of the batch left out."""
        return {place.number for call in self._live for place in call.operands} - self._given.keys()

    @cached_property
    def _live(self) -> list[LoopCall]:
        log = self.log
        return live_calls(log.calls, log.seen, self._root, self.buffers, self._given.keys(), self.span)

    @cached_property
    def _root(self) -> int:
        """The loss; with several backward passes in a step, the number that is divided by their count."""
        last = self.log.calls[self.span.stop - 1] if self.span else None
        if last is None or last.name != "aten.ones_like.default":  # how `backward()` makes the first gradient
            raise UnavailableError(OWN_GRADIENT)
        root = next(last.operands).number
        if self.count == 1:
            return root
        scaling = next(call for call in self._calls[::-1] if root in numbers(call.results))
        if scaling.name in {"aten.div.Tensor", "aten.mul.Tensor"} and scaling.args[1] in self._scales(scaling.name):
            return next(scaling.operands).number
        raise UnavailableError(UNSCALED.format(self.count))

    def _scales(self, name: str) -> tuple[float, ...]:
        """The numbers by which a loss may be scaled; a product has the bits of a quotient for powers of 2."""
        if name == "aten.div.Tensor":
            return (self.count,)
        return () if self.count & (self.count - 1) else (1 / self.count,)

    @property
    def _calls(self) -> Sequence[LoopCall]:
        return self.log.calls[self.span.start : self.span.stop]

    @cached_property
    def _given(self) -> dict[int, str]:
        """The tensors that hold the values of the batch, by number."""
        named = {
            same: name
            for name, value in self.batch.items()
            if (number := self.log.number_of(value)) is not None
            for same in self.equal.same_as(number)
        }
        every = range(len(self.log.seen))
        return {number: named[first] for number in every if (first := self.equal.first(number)) in named}

    def _name(self, number: int) -> str:
        """The name in the batch of a tensor that nothing in the step makes; empty if it is not there."""
        value = self.log.seen[number].value
        if number in self._given or value is None or value.numel() < 2:
            return self._given.get(number, "")
        return next((name for name, other in self.batch.items() if _is_same(value, other)), "")

    def _require_unchanged(self, live: Iterable[LoopCall], given: Mapping[int, str]) -> None:
        reading = {id(call) for call in live if any(place.number in given for place in call.operands)}
        first = next((index for index, call in enumerate(self.log.calls) if id(call) in reading), 0)
        written = frozenset[int]().union(*(call.written for call in self.log.calls[first:]))
        for number, name in given.items():
            if self.log.seen[number].storage in written:
                raise UnavailableError(CHANGED.format(name))

    def _constant(self, number: int) -> torch.Tensor:
        seen = self.log.seen[number]
        if not seen.from_elsewhere:
            raise UnavailableError(OF_GRADIENTS)
        if seen.value is None:
            raise UnavailableError(NOT_IN_BATCH.format(f"a tensor of shape {seen.shape}"))
        return seen.value


def numbers(results: object) -> set[int]:
    """The tensors among the results of a call."""
    return {place.number for place in places(results)}


def _is_same(value: torch.Tensor, other: torch.Tensor) -> bool:
    return value.dtype == other.dtype and value.device == other.device and torch.equal(value, other)


def _described(value: torch.Tensor) -> str:
    return f"the number {value.item()}" if value.numel() == 1 else f"a tensor of shape {tuple(value.shape)}"
