"""What no replay determines is free within its reach, and what was not trained for long is not part of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.audits.tolerant import find_undetermined
from tallystick.audits.training import audit_training
from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor
from tallystick.formats.records import StepRecord
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.catalogue import Reference, find_attack
from tallystick.tally.attacks.forging import read_anchor, read_records, replace_anchor
from tests.support.attacks.reference import STEPS, STRIDE, reference_policy, this_verifier_stack

Honest = Callable[[Reference], Path]
Forge = Callable[[str], Path]
BETA, QUIET = 0.95, 8


def state(step: int, quiet: float, noisy: float) -> dict[str, Tensor]:
    """Two small second moments beside 96 large ones."""
    return {
        "position.step": Tensor.of(np.asarray(step, np.int64)),
        "optimizer.a.exp_avg_sq": Tensor.of(np.asarray([quiet, noisy], np.float32)),
        "optimizer.b.exp_avg_sq": Tensor.of(np.ones(96, np.float32)),
    }


def test_a_moment_that_only_decays_is_determined_and_one_that_is_fed_by_rounding_is_not() -> None:
    start, decayed = state(10, 1e-12, 1e-12), np.float32(1e-12)
    for _ in range(QUIET):
        decayed = np.float32(np.float32(BETA) * decayed)
    end = state(10 + QUIET, float(decayed), 1e-12)
    assert find_undetermined(end, "fp32")["a"].tolist() == [True, True]
    assert find_undetermined(end, "fp32", start, BETA)["a"].tolist() == [False, True]


def test_only_undetermined_weights_are_moved_and_the_loss_stays(honest: Honest, forged: Forge) -> None:
    runs = [RunDirectory(honest("gpt2")), RunDirectory(forged("undetermined-moved"))]
    ours, theirs = (read_anchor(run, STEPS) for run in runs)
    start, beta = read_anchor(runs[1], STEPS - STRIDE), 0.999
    masks = find_undetermined(theirs, "fp32", start, beta)
    moved = {n for n in ours if n.startswith("weights.") and np.any(gap(ours[n], theirs[n]) > 1e-3)}
    assert moved == {f"weights.{name}" for name in masks}
    for name, mask in masks.items():
        assert np.max(gap(ours[f"weights.{name}"], theirs[f"weights.{name}"])[~mask]) < 1e-3
    losses = [[r.loss for r in read_records(run) if isinstance(r, StepRecord)] for run in runs]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)


def test_a_weight_beside_them_may_not_be_moved_as_far(forged: Forge, tmp_path: Path) -> None:
    import shutil

    run = RunDirectory(Path(shutil.copytree(forged("undetermined-moved"), tmp_path / "run")))
    held = read_anchor(run, STEPS)
    name = next(name for name in sorted(held) if name.endswith("c_attn.bias") and name.startswith("weights."))
    values = np.array(held[name].array())
    values[0] += np.float32(1e-3)
    replace_anchor(run, STEPS, held | {name: Tensor.of(values)})
    policy = reference_policy().model_copy(update={"mode": "tolerant"})
    assert audit_training(run, policy, bytes(32), this_verifier_stack()).verdict.outcome == "rejected"


def test_a_run_in_which_everything_is_determined_offers_nothing(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this run has none"):
        find_attack("undetermined-moved").forge(reference, tmp_path / "out")


def test_a_loop_has_a_reach_too(honest: Honest, tmp_path: Path) -> None:
    import shutil

    run = RunDirectory(Path(shutil.copytree(honest("loop"), tmp_path / "run")))
    held = read_anchor(run, STEPS)
    values = np.array(held["weights.0.weight"].array())
    values[0, 0] += 5
    replace_anchor(run, STEPS, held | {"weights.0.weight": Tensor.of(values)})
    policy = reference_policy().model_copy(update={"mode": "tolerant"})
    found = audit_training(run, policy, bytes(32), this_verifier_stack()).verdict
    assert "reach" in {finding.name for finding in found.objections}


def gap(one: Tensor, other: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(np.abs(one.values().astype(np.float64) - other.values()))
