"""Small honest loops as people write them, each in a few lines: what the table of honest loops records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import tallystick

STEPS = 9
Nothing = Callable[..., None]


def rows(count: int = STEPS, size: int = 8) -> list[Any]:
    """Batches of inputs and targets."""
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(size, 3, generator=generator) for _ in range(count)]
    return [(x, x.sum(1, keepdim=True)) for x in drawn]


def network() -> torch.nn.Module:
    """Two linear layers."""
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def adamw(model: torch.nn.Module) -> Any:
    """The optimizer of most loops."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def squares(_step: int, model: Any, batch: Any) -> Any:
    """The mean squared error."""
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def nothing(*_: Any) -> None:
    """No hook."""


def whole(_step: int, batch: Any) -> Any:
    """The batch as it is."""
    return batch


@dataclass(frozen=True)
class Loop:
    """A loop and its hooks; each is called with the step from 0, the model and the optimizer."""

    loss: Callable[[int, Any, Any], Any] = squares
    model: Callable[[], Any] = network
    optimizer: Callable[[Any], Any] = adamw
    before: Nothing = nothing
    scaled: Callable[[int], float] = lambda _: 1.0
    after_backward: Nothing = nothing
    steps: Callable[[int, Any, Any], bool] = lambda step, model, optimizer: True
    after_step: Nothing = nothing
    after_record: Nothing = nothing
    micro: Callable[[int], int] = lambda _: 1
    batches: Callable[[], Sequence[Any]] = rows
    given: Callable[[int, Any], Any] = whole
    set_to_none: bool = True
    backward: Callable[[Any], None] = lambda loss: loss.backward()
    norm: Callable[[Any], float | None] = lambda model: None
    settings: dict[str, Any] = field(default_factory=dict)

    def train(self, out: Path) -> list[float]:
        """Train and record, and return the losses."""
        torch.manual_seed(0)
        model = self.model()
        optimizer, data, losses = self.optimizer(model), list(self.batches()), list[float]()
        settings = {"anchor_stride": 3, **self.settings}
        with tallystick.record_training(out, model, optimizer, **settings) as recorder:
            for step, batch in enumerate(data):
                self.before(step, model, optimizer)
                for each in optimizer if isinstance(optimizer, list) else [optimizer]:
                    each.zero_grad(set_to_none=self.set_to_none)
                count = self.micro(step)
                parts = [batch] if count == 1 else [*zip(*(each.chunk(count) for each in batch), strict=True)]
                loss = sum(self._backward(step, model, part, count) for part in parts) / count
                self.after_backward(step, model, optimizer)
                if self.steps(step, model, optimizer):
                    for each in optimizer if isinstance(optimizer, list) else [optimizer]:
                        each.step()
                self.after_step(step, model, optimizer)
                norm = self.norm(model)
                recorder.step(loss, self.given(step, batch if count == 1 else parts), gradient_norm=norm)
                self.after_record(step, model, optimizer)
                losses.append(float(loss))
        return losses

    def _backward(self, step: int, model: Any, part: Any, count: int) -> Any:
        loss = self.loss(step, model, part)
        scaled = loss if self.scaled(step) == 1 else loss * self.scaled(step)
        self.backward(scaled / count if count > 1 else scaled)
        return loss.detach()
