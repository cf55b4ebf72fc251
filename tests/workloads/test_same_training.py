from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def step_of(rows: int, eps: float = 1e-8, hidden: int = 4, clip: float | None = 1.0) -> Any:
    from tallystick.frameworks.torch.capture.training_step import capture_training_step

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=eps)

    def loss(called: Any, batch: Any) -> Any:
        return (called(batch["x"]) - batch["y"]).square().mean()

    batch = {"x": torch.randn(rows, 3), "y": torch.randn(rows, 1)}
    return capture_training_step(model, loss, optimizer, batch, clip_norm=clip).graph


@pytest.fixture(scope="module")
def first() -> Any:
    return step_of(4)


def test_steps_of_one_training_on_batches_of_other_shapes_are_alike(first: Any) -> None:
    from tallystick.workloads.same_training import difference

    assert difference(first, step_of(7), first) == ""
    assert difference(first, step_of(4, clip=None), first) == ""  # what makes a gradient is a program of its own


def test_another_optimizer_or_another_state_is_named(first: Any) -> None:
    from tallystick.workloads.same_training import difference

    assert difference(first, step_of(4, eps=1e-6), first) == "weights.0.bias is updated otherwise"
    assert difference(first, step_of(4, eps=1e-6), None) == ""  # the first step with settings of its own
    assert "is another input" in difference(first, step_of(4, hidden=5), None)


def test_a_weight_that_is_passed_on_or_an_output_that_is_left_out_is_named(first: Any) -> None:
    from tallystick.workloads.same_training import difference

    kept = [replace(each, value=each.name) if each.name == "weights.2.weight" else each for each in first.outputs]
    assert difference(first, replace(first, outputs=tuple(kept)), first) == "weights.2.weight is updated otherwise"
    fewer = tuple(each for each in first.outputs if each.name != "gradients.0.bias")
    changed = "optimizer.0.bias.exp_avg has no gradient, and is changed"
    assert difference(first, replace(first, outputs=fewer), first) == changed


def test_a_parameter_without_a_gradient_stays_as_it_is(first: Any) -> None:
    from tallystick.workloads.names import parameter_of
    from tallystick.workloads.same_training import difference

    frozen = [each for each in first.outputs if each.name != "gradients.0.bias"]
    frozen = [replace(each, value=each.name) if parameter_of(each.name) == "0.bias" else each for each in frozen]
    assert difference(first, replace(first, outputs=tuple(frozen)), first) == ""
    assert difference(replace(first, outputs=tuple(frozen)), first, None) == ""
