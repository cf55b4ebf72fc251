"""Exponential moving averages of weights, which a loop keeps beside its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from tallystick.errors import UsageError
from tallystick.frameworks.torch.wrappers import inner_model
from tallystick.transcripts.average import AverageRule, Form
from tallystick.workloads.names import AVERAGE, AVERAGED


@dataclass(frozen=True)
class Ema:
    """The averaged weights of a loop and how it updates them, between the step of the optimizer and its record.

    Args:
        model: a `torch.optim.swa_utils.AveragedModel`, or a module with the averages under the names of the model.
        decay: the share of the old average that is kept in an update.
        form: "lerp" for `lerp_` and `get_ema_multi_avg_fn`, "sum" for `mul_` and `add_`, "difference" for
            `a.sub_((1 - decay) * (a - w))`, as diffusers does.

    Raises `UsageError` for a decay or a form that is none.
    """

    model: nn.Module
    decay: float
    form: Form = "lerp"

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1 or self.form not in FORMS:
            raise UsageError(f"Ema: a decay from 0 to 1 and one of the forms {', '.join(FORMS)} are needed")

    @cached_property
    def rule(self) -> AverageRule:
        """What a spec states of it."""
        return AverageRule(decay=float(self.decay), form=self.form, counts=self._count is not None)

    @property
    def _count(self) -> torch.Tensor | None:
        found: Any = getattr(self.model, "n_averaged", None)
        return found if isinstance(found, torch.Tensor) else None

    def live(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """The averages of the weights of `model` by their names in the state, and the count of updates if there is one.

        Raises `UsageError` where an average of a weight is not there, or has another form.
        """
        held: Any = self.model.module if self._count is not None else self.model
        averages, found = dict(inner_model(held).named_parameters()), dict[str, torch.Tensor]()
        for name, weight in model.named_parameters():
            average = averages.get(name)
            if average is None or (average.shape, average.dtype) != (weight.shape, weight.dtype):
                raise UsageError(f"Ema: no average of {name}, {tuple(weight.shape)} in {weight.dtype}")
            found[f"{AVERAGE}{name}"] = average
        return found | ({} if self._count is None else {AVERAGED: self._count})

    def updated(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The averages after a step by their names in the state, which holds the new weights and the old averages."""
        count = None if self._count is None else state[AVERAGED]
        found = {name: _updated(self.rule, state, name, count) for name in state if name.startswith(AVERAGE)}
        return found | ({} if count is None else {AVERAGED: count + 1})


def _updated(
    rule: AverageRule, tensors: Mapping[str, torch.Tensor], name: str, count: torch.Tensor | None
) -> torch.Tensor:
    weight = tensors[f"weights.{name.removeprefix(AVERAGE)}"]
    moved = FORMS[rule.form](tensors[name], weight, rule.decay)
    return moved if count is None else torch.where(count == 0, weight, moved)


def _difference(average: torch.Tensor, weight: torch.Tensor, decay: float) -> torch.Tensor:
    share = 1 - decay
    return average - share * (average - weight)


FORMS = {
    "lerp": lambda average, weight, decay: torch.lerp(average, weight, 1 - decay),
    "sum": lambda average, weight, decay: torch.add(average * decay, weight, alpha=1 - decay),
    "difference": _difference,
}
