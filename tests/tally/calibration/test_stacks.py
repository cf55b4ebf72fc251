"""Stacks differ in what they set, and nothing of the caller's environment leaks into them."""

from __future__ import annotations

import pytest

from tallystick.tally.calibration.stacks import BASE, STACKS, stack_named, stacks_for, variables_of


def test_every_stack_has_its_own_name_and_settings() -> None:
    assert len({stack.name for stack in STACKS}) == len(STACKS)
    assert [stack_named(stack.name) for stack in STACKS] == list(STACKS)


def test_switches_of_the_caller_do_not_reach_a_stack_and_its_own_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    assert "MKL_CBWR" not in variables_of(BASE)
    assert variables_of(stack_named("MKL compatible"))["MKL_CBWR"] == "COMPATIBLE"


def test_batch_norm_meets_no_smaller_batches() -> None:
    assert all(stack.micro_batches == 1 for stack in stacks_for("cnn"))
    assert stacks_for("llama") == STACKS


def test_some_stacks_of_every_model_are_held_out_and_the_base_is_not() -> None:
    assert not BASE.held_out
    assert all(any(stack.held_out for stack in stacks_for(model)) for model in ("llama", "cnn"))
