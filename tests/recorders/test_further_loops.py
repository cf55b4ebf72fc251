"""Further honest loops, unlike those of `test_every_loop`: none is rejected, and each states its verdict."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.recorders import honest, test_every_loop as loops
from tests.recorders.honest import Loop
from tests.recorders.test_every_loop import GOOD, OPEN

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


def made(kind: str, **settings: Any) -> Any:
    return lambda model: getattr(torch.optim, kind)(model.parameters(), **settings)


def of_three_groups(model: Any) -> Any:
    """Each layer with a rate and a decay of its own, and one without decay."""
    layers = [model[0].weight, model[0].bias], [model[2].weight], [model[2].bias]
    rates, decays = (1e-2, 3e-3, 1e-3), (0.1, 0.2, 0.0)
    groups = [
        {"params": part, "lr": rate, "weight_decay": decay}
        for part, rate, decay in zip(layers, rates, decays, strict=True)
    ]
    return torch.optim.AdamW(groups)


def schedules_each_group(step: int, model: Any, optimizer: Any) -> None:
    for number, group in enumerate(optimizer.param_groups):
        group["lr"] = 1e-2 * (0.5 + 0.5 * math.cos(math.pi * step / (9 + number)))


def halves_on_plateau(step: int, model: Any, optimizer: Any) -> None:
    schedule = optimizer.__dict__.setdefault(
        "plateau", torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    )
    schedule.step(1.0)


def clips_each_group(step: int, model: Any, optimizer: Any) -> None:
    for group in optimizer.param_groups:
        nn.utils.clip_grad_norm_(group["params"], 0.05, norm_type=2.5)


def swaps_betas_of_a_group(step: int, model: Any, optimizer: Any) -> None:
    if step == 4:
        optimizer.param_groups[1]["betas"] = (0.8, 0.99)


class Tied(nn.Module):  # type: ignore[misc]
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        self.last.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.out(self.last(self.first(x).tanh()).tanh())


class Checkpointed(nn.Module):  # type: ignore[misc]
    """A network whose middle is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.out = nn.Sequential(nn.Linear(3, 8), nn.Tanh()), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.out(torch.utils.checkpoint.checkpoint(self.middle, x, use_reentrant=False))


class Conv(nn.Module):  # type: ignore[misc]
    """Images of three pixels in channels-last layout, with group normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, (1, 2)), nn.GroupNorm(2, 4), nn.Linear(8, 1)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Any) -> Any:
        images = x[:, None, None, :].contiguous(memory_format=torch.channels_last)
        return self.out(self.norm(self.conv(images)).flatten(1))


def weight_normed() -> Any:
    network = honest.network()
    nn.utils.parametrizations.weight_norm(network[0])
    return network


def frozen_in_the_middle() -> Any:
    network = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    network[1].requires_grad_(False)
    return network


def in_halves() -> Any:
    return honest.network().to(torch.bfloat16)


def batches_in_halves() -> Any:
    return [tuple(each.bfloat16() for each in batch) for batch in honest.rows()]


def of_those_present(_step: int, model: Any, batch: Any) -> Any:
    """A mean over the rows that a mask of the batch leaves."""
    errors = (model(batch[0]) - batch[1]).square()
    return (errors * batch[2]).sum() / batch[2].sum().clamp(min=1.0)


def with_masks() -> Any:
    """Masks of a step: all ones in every third one."""
    generator = torch.Generator().manual_seed(3)
    drawn = [(torch.rand(8, 1, generator=generator) > 0.4).float() for _ in range(honest.STEPS)]
    masks = [torch.ones(8, 1) if step % 3 == 0 else mask for step, mask in enumerate(drawn)]
    return [(*batch, mask) for batch, mask in zip(honest.rows(), masks, strict=True)]


def by_its_length(_step: int, model: Any, batch: Any) -> Any:
    return (model(batch[0]) - batch[1]).square().sum() / len(batch[0])


def by_a_constant(_step: int, model: Any, batch: Any) -> Any:
    return (model(batch[0]) - batch[1]).square().sum() / 8


def contrasted(_step: int, model: Any, batch: Any) -> Any:
    """Rows tell their own targets from those of the other rows."""
    scores = model(batch[0]) @ batch[1].T
    return functional.cross_entropy(scores, torch.arange(len(batch[0])))


def penalising_its_gradient(_step: int, model: Any, batch: Any) -> Any:
    x = batch[0].detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return functional.mse_loss(model(batch[0]), batch[1]) + 0.1 * slope.square().mean()


def quantile(_step: int, model: Any, batch: Any) -> Any:
    """The pinball loss."""
    errors = batch[1] - model(batch[0])
    return torch.maximum(0.9 * errors, -0.1 * errors).mean()


def smoothed_over_time(step: int, model: Any, optimizer: Any) -> None:
    """Gradients are averaged with those of before, by hand."""
    before = model.__dict__.setdefault("before", [torch.zeros_like(each) for each in model.parameters()])
    for each, held in zip(model.parameters(), before, strict=True):
        held.lerp_(each.grad, 0.5)
        each.grad.copy_(held)


LOOPS: dict[str, tuple[str, Loop]] = {
    "clipped by group in an odd norm": (GOOD, Loop(optimizer=loops.grouped, after_backward=clips_each_group)),
    "three groups on schedules of their own": (GOOD, Loop(optimizer=of_three_groups, before=schedules_each_group)),
    "betas of the second group change": (GOOD, Loop(optimizer=loops.grouped, before=swaps_betas_of_a_group)),
    "rate halved on a plateau": (GOOD, Loop(optimizer=loops.sgd, after_record=halves_on_plateau)),
    "fused AdamW": (GOOD, Loop(optimizer=made("AdamW", lr=1e-2, fused=True))),
    "AdamW without foreach": (GOOD, Loop(optimizer=made("AdamW", lr=1e-2, foreach=False, amsgrad=True))),
    "Nesterov, uphill": (
        GOOD,
        Loop(optimizer=made("SGD", lr=1e-3, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True)),
    ),
    "RMSprop, centred": (GOOD, Loop(optimizer=made("RMSprop", lr=1e-3, centered=True, momentum=0.5))),
    "NAdam with decay": (GOOD, Loop(optimizer=made("NAdam", weight_decay=0.1, decoupled_weight_decay=True))),
    "tied weights": (GOOD, Loop(model=Tied)),
    "a checkpoint in the middle": (GOOD, Loop(model=Checkpointed)),
    "weight normalization": (GOOD, Loop(model=weight_normed)),
    "channels-last images": (OPEN, Loop(model=Conv)),
    "frozen in the middle": (GOOD, Loop(model=frozen_in_the_middle, after_backward=loops.clips(max_norm=0.05))),
    "weights of 16 bits": (GOOD, Loop(model=in_halves, batches=batches_in_halves)),
    "masks of a step": (GOOD, Loop(loss=of_those_present, batches=with_masks)),
    "a mean by the length of the batch": (GOOD, Loop(loss=by_its_length, batches=loops.a_short_last_one)),
    "a sum by a constant": (OPEN, Loop(loss=by_a_constant, batches=loops.a_short_last_one)),
    "rows contrasted with each other": (GOOD, Loop(loss=contrasted, batches=loops.of_two_lengths)),
    "a penalty on a gradient": (OPEN, Loop(loss=penalising_its_gradient)),
    "a pinball loss": (GOOD, Loop(loss=quantile)),
    "gradients smoothed over time": (OPEN, Loop(after_backward=smoothed_over_time)),
    "fewer micro-batches in the end": (GOOD, Loop(micro=lambda step: 4 if step < 6 else 2)),
    "one micro-batch in the end": (
        GOOD,
        Loop(micro=lambda step: 2 if step < 7 else 1, given=lambda step, batch: batch if step < 7 else [batch]),
    ),
}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """The draw that is worst for an honest loop: after the first step none is replayed while it runs."""
    monkeypatch.setattr("tallystick.recorders.self_check.SelfCheck.is_due", lambda _, index: index == 1)


@pytest.mark.parametrize("name", LOOPS)
def test_an_honest_loop_is_never_rejected(tmp_path: Path, name: str) -> None:
    outcome, loop = LOOPS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.train(tmp_path / "run")
    said = [str(each.message) for each in caught if each.category is RuntimeWarning]
    verdict = loops.audited(tmp_path / "run")
    assert (verdict.outcome, verdict.objections) == (outcome, ()), (said, verdict.unavailable)
    assert bool(said) == (outcome == OPEN), said


def test_they_are_other_loops() -> None:
    assert not LOOPS.keys() & loops.LOOPS.keys()
    assert len(LOOPS) >= 15
