"""Schedules read off learning rates: those of PyTorch and transformers, and single steps that leave them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tallystick.audits.varying_steps import describe_rates, first_unexplained

torch = pytest.importorskip("torch")
STEPS = 50


def rates_of(make: Callable[[Any, Any], Any]) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    schedule, rates = make(torch.optim.lr_scheduler, optimizer), []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def linear_with_warm_up(_: Any, optimizer: Any) -> Any:
    from transformers.optimization import get_linear_schedule_with_warmup

    return get_linear_schedule_with_warmup(optimizer, 5, STEPS)


def cosine_with_warm_up(_: Any, optimizer: Any) -> Any:
    from transformers.optimization import get_cosine_schedule_with_warmup

    return get_cosine_schedule_with_warmup(optimizer, 5, STEPS)


@pytest.mark.parametrize(
    ("make", "described"),
    [
        (lambda known, optimizer: known.ConstantLR(optimizer, 1.0), "constant 0.001"),
        (lambda known, optimizer: known.ExponentialLR(optimizer, 0.9), "exponential from 0.001 to"),
        (lambda known, optimizer: known.CosineAnnealingLR(optimizer, 80, 1e-5), "cosine from 0.001 to"),
        (lambda known, optimizer: known.LinearLR(optimizer, 1.0, 0.1, 20), "linear from 0.001 to 0.0001"),
        (lambda known, optimizer: known.LinearLR(optimizer, 0.1, 1.0, 5), "constant 0.001 after 5 warm-up steps"),
        (linear_with_warm_up, "linear from 0.001 to 2.22222e-05 after 5 warm-up steps"),
        (cosine_with_warm_up, "cosine from 0.001 to 1.21797e-06 after 5 warm-up steps"),
    ],
)
def test_usual_schedules_are_described(make: Callable[[Any, Any], Any], described: str) -> None:
    assert describe_rates(rates_of(make)).startswith(described)


@pytest.mark.parametrize("factor", [3.0, 1.001, 1e6, -1.0])
def test_a_step_off_the_schedule_is_named(factor: float) -> None:
    rates = rates_of(lambda known, optimizer: known.CosineAnnealingLR(optimizer, STEPS))
    rates[20] *= factor
    assert describe_rates(rates) == ""
    assert first_unexplained(rates) == 20


def test_steps_of_a_staircase_and_too_few_rates_follow_nothing() -> None:
    assert describe_rates(rates_of(lambda known, optimizer: known.StepLR(optimizer, 10))) == ""
    assert describe_rates([1e-3, 2e-3]) == ""
    assert describe_rates([]) == ""
    assert describe_rates([1e-3, math.nan]) == ""
    assert describe_rates([0.0, 0.0]) == "constant 0"
