"""Loops recorded with the three lines alone: the first step shows what the loss is, or what is missing is said."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.store.run import RunDirectory

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

Audit = Callable[[Path], Any]


@pytest.fixture
def audit(one_thread: None) -> Audit:
    from tallystick.api.auditing import verifier_stack
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training

    def judged(path: Path) -> Any:
        run, asked = RunDirectory(path), Policy(full=True)
        return audit_training(run, asked, bytes(32), verifier_stack(run, None, asked)).verdict

    return judged


def network() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def adamw(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def batch_of(step: int) -> Any:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True)


def squares(model: Any, batch: Any) -> Any:
    return functional.mse_loss(model(batch[0]), batch[1])


@dataclass
class Loop:
    """A loop as people write it; each part can be another."""

    model: Callable[[], Any] = network
    optimizer: Callable[[Any], Any] = adamw
    batch: Callable[[int], Any] = batch_of
    loss: Callable[[Any, Any], Any] = squares
    given: Callable[[Any], Any] = lambda batch: batch
    around: Callable[[], Any] = nullcontext
    before_step: Callable[[Any], Any] = lambda model: None
    after_step: Callable[[Any], Any] = lambda batch: None
    schedule: Callable[[Any], Any] | None = None
    steps: int = 5
    said: list[str] = field(default_factory=list)

    def run(self, out: Path) -> Path:
        """Train and record; `said` are the recorder's warnings."""
        torch.manual_seed(0)
        model = self.model()
        optimizer = self.optimizer(model)
        schedule = self.schedule(optimizer) if self.schedule else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with tallystick.record_training(out, model, optimizer, anchor_stride=2) as recorder:
                for step in range(self.steps):
                    batch = self.batch(step)
                    with self.around():
                        loss = self.loss(model, batch)
                    optimizer.zero_grad()
                    loss.backward()
                    self.before_step(model)
                    optimizer.step()
                    if schedule:
                        schedule.step()
                    self.after_step(batch)
                    recorder.step(loss, batch=self.given(batch))
        self.said = [str(each.message) for each in caught if each.category is RuntimeWarning]
        return out


def convolving() -> Any:
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(36, 10))


def images(step: int) -> Any:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 1, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator)


def labelled(model: Any, batch: Any) -> Any:
    return functional.cross_entropy(model(batch[0]), batch[1])


def two_groups(model: Any) -> Any:
    groups = [{"params": [model[0].weight, model[2].weight], "weight_decay": 0.1}, {"params": [model[0].bias]}]
    groups.append({"params": [model[2].bias], "lr": 1e-3})
    return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)


def in_bfloat16() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def clips(model: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def weighted(model: Any, batch: Any) -> Any:
    with torch.no_grad():
        scale = model(batch[0]).abs().mean()
    return squares(model, batch) * torch.tensor(0.5) + 0.01 * scale.detach() * sum(p.norm() for p in model.parameters())


def reads_a_number(model: Any, batch: Any) -> Any:
    loss = squares(model, batch)
    assert loss.item() >= 0
    return loss


@pytest.mark.parametrize(
    "loop",
    [
        Loop(),
        Loop(model=convolving, batch=images, loss=labelled),
        Loop(model=convolving, batch=images, loss=labelled, around=in_bfloat16, before_step=clips),
        Loop(optimizer=two_groups, schedule=lambda each: torch.optim.lr_scheduler.ExponentialLR(each, 0.5)),
        Loop(before_step=clips),
        Loop(loss=weighted),
        Loop(loss=reads_a_number),
        Loop(given=lambda batch: {"x": batch[0].clone(), "y": batch[1].detach()}),
    ],
    ids=["mlp", "cnn", "autocast", "groups", "clipped", "constants", "item", "copies"],
)
def test_a_loop_is_accepted_with_the_three_lines_alone(loop: Loop, tmp_path: Path, audit: Audit) -> None:
    verdict = audit(loop.run(tmp_path / "run"))
    assert loop.said == []
    assert (verdict.outcome, verdict.objections) == ("accepted", ())


def drops() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.1), nn.Linear(8, 1))


def noisy(model: Any, batch: Any) -> Any:
    return squares(model, (batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]))


def halves(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)


def from_a_list(step: int) -> Any:
    return batch_of(step)[0], torch.tensor([[float(step + row)] for row in range(8)])


def doubles(batch: Any) -> None:
    batch[1].mul_(2)


class Growing:
    """A weight of the loss that grows from step to step."""

    def __init__(self) -> None:
        self.weight = 1.0

    def __call__(self, model: Any, batch: Any) -> Any:
        self.weight *= 1.5
        return squares(model, batch) * self.weight


class Stepping:
    """A second optimizer over the last layer."""

    def __call__(self, model: Any) -> None:
        torch.optim.SGD(model[2].parameters(), lr=0.1).step()


class Checked(torch.autograd.Function):
    """A function with a backward pass of its own."""

    @staticmethod
    def forward(_: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient * 3


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (Loop(model=drops), "dropout draws random numbers (layer 1); set its probability to 0 where the model is made"),
        (Loop(loss=noisy), "random numbers (aten.randn_like.default)"),
        (Loop(batch=from_a_list, given=lambda batch: batch[0]), "that is not in batch=; give batch=(inputs, targets)"),
        (
            Loop(before_step=halves),
            "gradients are changed between backward() and optimizer.step(), and not by clip_gra",
        ),
        (Loop(before_step=Stepping()), "SGD steps parameters of the model too, and a graph holds one optimizer"),
        (Loop(after_step=doubles), "x1 of the batch was changed after the loss had read it"),
        (Loop(loss=Growing()), "a number in the loss that changes"),
        (Loop(loss=lambda model, batch: Checked.apply(squares(model, batch))), "the autograd.Function Checked"),
        (Loop(optimizer=lambda model: torch.optim.Adagrad(model.parameters())), "use AdamW, Adam or SGD"),
    ],
    ids=["dropout", "noise", "targets", "scaled", "optimizers", "changed", "growing", "function", "adagrad"],
)
def test_a_loop_that_cannot_be_replayed_is_told_at_once_and_its_audit_repeats_it(
    loop: Loop, reason: str, tmp_path: Path, audit: Audit
) -> None:
    verdict = audit(loop.run(tmp_path / "run"))
    (line,) = loop.said
    assert reason in line
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())
    said = line.partition(": ")[2]
    assert any(said in each for each in verdict.unavailable)
