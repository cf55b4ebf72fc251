"""A calibration takes its limits from honest drift here and elsewhere, and checks them on what it left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tallystick.audits.limits import MARGIN, Calibration
from tallystick.tally.calibration.cheats import ClaimTrial
from tallystick.tally.calibration.drift import LONGER_MARGIN, Distances, Drift
from tallystick.tally.calibration.runs import MODELS, OPTIMIZERS, PRECISIONS, Case, Sample
from tallystick.tally.calibration.stacks import stack_named
from tallystick.tally.calibration.study import table

PLAIN, LEFT_OUT = stack_named("fused attention"), stack_named("all portable")


def drift(size: float) -> Drift:
    distances = Distances(size, size, size, size, size, "")
    return Drift(distances, distances, projection=size, loss=size, floor=0.0, undetermined=0.0)


def samples(size: float) -> list[Sample]:
    """One step from state 8 for every kind of run, on a stack to calibrate on and on one that is held out."""
    kinds = product(MODELS, OPTIMIZERS, PRECISIONS)
    cases = [Case(model, optimizer, dtype, 0) for model, optimizer, dtype in kinds]
    return [Sample(case, stack, 8, 9, False, drift(size)) for case in cases for stack in (PLAIN, LEFT_OUT)]


def residuals(calibration: Calibration) -> set[tuple[int, float]]:
    return {(entry.window, entry.weights.overall) for entry in calibration.entries}


def test_limits_are_a_multiple_of_honest_drift() -> None:
    found = residuals(table(samples(1e-3), []))
    assert found == {(1, MARGIN * 1e-3), (8, LONGER_MARGIN * 1e-3), (32, LONGER_MARGIN * 1e-3)}


def test_what_is_held_out_makes_no_limit_and_is_reported() -> None:
    further = [replace(s, drift=drift(1.0)) if s.stack == LEFT_OUT else s for s in samples(1e-3)]
    calibration = table(further, [])
    assert residuals(calibration) == residuals(table(samples(1e-3), []))
    assert all(entry.held_out_max["weights.overall"] == 1.0 for entry in calibration.entries)


def test_limits_for_two_machines_are_those_of_the_one_that_drifts_further() -> None:
    calm, wild = table(samples(1e-4), []), table(samples(1e-3), [])
    assert residuals(table(samples(1e-4), [], also=wild)) == residuals(wild)
    assert residuals(table(samples(1e-3), [], also=calm)) == residuals(wild)
    assert table(samples(1e-4), [], also=wild).machine == f"{calm.machine}; {wild.machine}"


def test_a_cheat_within_twice_a_limit_is_withdrawn_and_a_larger_one_is_not() -> None:
    def trial(name: str, size: float) -> ClaimTrial:
        return ClaimTrial(Case("llama", "sgd", "fp32", 0), name, 1, drift(size))

    found = table(samples(1e-3), [trial("small", 1e-3), trial("large", 1.0), trial("large", 1e-1)])
    [entry] = [
        e
        for e in found.entries
        if (e.family, e.optimizer, e.dtype, e.window, e.from_step) == ("language", "sgd", "fp32", 1, 8)
    ]
    assert entry.withdrawn == ("small",)


@pytest.mark.parametrize(("model", "vocabulary"), [("llama", 256), ("cnn", 10)])
def test_the_stated_sizes_of_the_models_are_theirs(model: Any, vocabulary: int) -> None:
    models = pytest.importorskip("tallystick.engines.torch.training.trainer")
    case = Case(model, "adamw", "fp32", 0)
    count = sum(parameter.numel() for parameter in models.build_model(case.recipe(), vocabulary).parameters())
    assert case.parameters == count
