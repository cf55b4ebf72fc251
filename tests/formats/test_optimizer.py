"""The scalars of a step are the numbers with which `torch.optim` moves weights, and rules say what it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import TensorSpec
from tallystick.formats.optimizers import AdamRule, GroupRule, SgdRule, read_rule, rule_of_recipe, schedule_scalars
from tallystick.formats.recipe import Recipe

BETAS = st.floats(0.0, 0.9999)
RATES = st.floats(1e-8, 1.0)
STEPS = st.integers(1, 12)
GRADIENTS = [0.5, -2.0, 0.25, 1.0, -0.125, 3.0, -1.0, 0.75, 0.5, -0.5, 2.0, 1.5]


def moved(optimizer_of: Callable[[Any], torch.optim.Optimizer], steps: int) -> list[float]:
    """A weight of float64 that starts at 1, after each step of `torch.optim`."""
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    optimizer, seen = optimizer_of([weight]), []
    for gradient in GRADIENTS[:steps]:
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        seen.append(weight.item())
    return seen


def moved_by_scalars(rule: AdamRule, rate: float, steps: int) -> list[float]:
    """The same weight, moved by Adam's formulas in Python's numbers and the scalars of each step."""
    weight, mean, square, seen = 1.0, 0.0, 0.0, []
    for step, gradient in enumerate(GRADIENTS[:steps], start=1):
        scalars = schedule_scalars(rule, rate, step)
        weight *= scalars.get("decay", 1.0)
        mean += (gradient - mean) * (1 - rule.betas[0])
        square = square * rule.betas[1] + gradient * gradient * (1 - rule.betas[1])
        weight += scalars["step_size"] * mean / (math.sqrt(square) / scalars["root_correction"] + rule.eps)
        seen.append(weight)
    return seen


@given(BETAS, BETAS, RATES, STEPS, st.sampled_from([0.0, 0.1]))
@settings(deadline=None, max_examples=25)
def test_adamw_moved_by_the_scalars_is_where_pytorch_moves_it(
    first: float, second: float, rate: float, steps: int, decay: float
) -> None:
    betas = (first, second)
    native = moved(lambda p: torch.optim.AdamW(p, lr=rate, betas=betas, eps=1e-6, weight_decay=decay), steps)
    ours = moved_by_scalars(AdamRule(kind="adamw", betas=betas, eps=1e-6, weight_decay=decay), rate, steps)
    assert ours == pytest.approx(native, rel=1e-12, abs=1e-14)


def test_a_scalar_of_another_step_moves_the_weight_elsewhere() -> None:
    rule = AdamRule(kind="adamw", betas=(0.9, 0.999), weight_decay=0.1)
    native = moved(lambda p: torch.optim.AdamW(p, lr=0.1, betas=rule.betas, weight_decay=0.1), 3)
    ours = moved_by_scalars(rule, 0.1, 3)
    assert ours == pytest.approx(native, rel=1e-12)
    assert moved_by_scalars(rule, 0.1001, 3) != pytest.approx(native, rel=1e-6)
    assert schedule_scalars(rule, 0.1, 2) != schedule_scalars(rule, 0.1, 3)


@given(RATES, STEPS)
@settings(deadline=None, max_examples=25)
def test_sgd_moves_by_minus_the_rate_at_every_step(rate: float, steps: int) -> None:
    native, weight = moved(lambda p: torch.optim.SGD(p, lr=rate), steps), 1.0
    for step, gradient in enumerate(GRADIENTS[:steps], start=1):
        weight += schedule_scalars(SgdRule(), rate, step)["step_size"] * gradient
        assert weight == pytest.approx(native[step - 1], rel=1e-14, abs=1e-15)


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (SgdRule(weight_decay=0.1), {"step_size"}),
        (AdamRule(kind="adam", weight_decay=0.1), {"step_size", "root_correction"}),
        (AdamRule(kind="adamw"), {"step_size", "root_correction"}),
        (AdamRule(kind="adamw", weight_decay=0.1), {"step_size", "root_correction", "decay"}),
    ],
)
def test_only_scalars_that_the_arithmetic_reads_are_named(rule: GroupRule, names: set[str]) -> None:
    scalars = schedule_scalars(rule, 0.1, 1)
    assert scalars.keys() == names
    assert list(scalars) == sorted(scalars)


def test_by_hand() -> None:
    scalars = schedule_scalars(AdamRule(kind="adamw", betas=(0.5, 0.75), weight_decay=0.25), 0.5, 2)
    assert scalars == {"decay": 0.875, "root_correction": math.sqrt(0.4375), "step_size": -0.5 / 0.75}


@pytest.mark.parametrize("step", [0, -1])
def test_there_is_no_step_before_the_first(step: int) -> None:
    for rule in (AdamRule(kind="adamw"), SgdRule()):
        with pytest.raises(UsageError, match="counted from 1"):
            schedule_scalars(rule, 0.1, step)
    assert schedule_scalars(AdamRule(kind="adamw"), 0.1, 1)


def test_the_slots_are_what_pytorch_keeps() -> None:
    rules: dict[GroupRule, Callable[[Any], torch.optim.Optimizer]] = {
        AdamRule(kind="adamw"): torch.optim.AdamW,
        AdamRule(kind="adam"): torch.optim.Adam,
        AdamRule(kind="adamw", amsgrad=True): lambda p: torch.optim.AdamW(p, amsgrad=True),
        AdamRule(kind="adamw", fused=True): lambda p: torch.optim.AdamW(p, fused=True),
        SgdRule(): lambda p: torch.optim.SGD(p, lr=0.1),
        SgdRule(momentum=0.9): lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    }
    for rule, optimizer_of in rules.items():
        weight = torch.ones((), requires_grad=True)
        optimizer = optimizer_of([weight])
        weight.grad = torch.ones(())
        optimizer.step()
        kept = {name for name, value in optimizer.state[weight].items() if value is not None}
        assert set(rule.slots(TensorSpec("F32"))) == kept


def test_the_rule_of_a_recipe_has_its_settings(recipe_of: Callable[..., Recipe]) -> None:
    recipe = recipe_of({"optimizer": {"kind": "adamw", "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.2}})
    stated = AdamRule(kind="adamw", betas=(0.8, 0.95), eps=1e-7, weight_decay=0.2)
    assert rule_of_recipe(recipe.optimizer) == stated


BASE = AdamRule(kind="adamw", betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
STATED = BASE.to_json()


def test_a_rule_is_read_back_from_a_spec() -> None:
    assert read_rule(STATED) == BASE


@pytest.mark.parametrize("setting", ["amsgrad", "fused"])
def test_a_variant_of_adam_is_stated_only_where_it_is_on(setting: str) -> None:
    rule = AdamRule(kind="adamw", **{setting: True})
    stated = rule.to_json()
    assert isinstance(stated, dict)
    assert isinstance(STATED, dict)
    assert stated[setting] is True
    assert setting not in STATED
    assert read_rule(stated) == rule


def test_a_fused_kernel_reads_the_learning_rate() -> None:
    assert schedule_scalars(AdamRule(kind="adamw", weight_decay=0.1, fused=True), 0.5, 2) == {"learning_rate": 0.5}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("betas", [1.0, 0.9]),
        ("betas", [0.9, 1.0]),
        ("betas", [0.9]),
        ("eps", -1.0),
        ("kind", "lbfgs"),
        ("momentum", 1.5),
        ("nesterov", "yes"),
        ("weight_decay", float("inf")),
        ("weight_decay", float("nan")),
        ("fused", "yes"),
        ("foreach", True),
    ],
)
def test_a_rule_that_has_no_arithmetic_is_malformed(field: str, value: Any) -> None:
    assert isinstance(STATED, dict)
    with pytest.raises(MalformedError, match=field):
        read_rule({**STATED, field: value})
