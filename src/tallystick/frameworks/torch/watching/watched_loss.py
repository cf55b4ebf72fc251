"""The loss of a watched step as a function of model and batch: it calls the operators that the loop called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tallystick.frameworks.torch.capture.exported_calls import enter_module, tensors_of
from tallystick.frameworks.torch.watching.calls import LoopCall, Place, mapped


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
