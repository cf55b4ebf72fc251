"""A verifier whose machine rounds otherwise: honest runs pass, small cheats do not, and exactness is not claimed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tallystick.tally.attacks.catalogue import find_attack

AUDIT_ALL = """
import json, sys, torch
from pathlib import Path
from tallystick.audits.policy import Policy
from tallystick.audits.training import audit_training
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.training.verifier_stack import TorchReplayer
from tallystick.formats.store.run import RunDirectory
from tallystick.verdicts.replayer import VerifierStack

torch.set_num_threads(1)
here = VerifierStack(describe_environment("cpu"), TorchReplayer)
for line in sys.stdin:
    path, mode = line.split()
    report = audit_training(RunDirectory(Path(path)), Policy(mode=mode, full=True), bytes(32), here)
    verdict = report.verdict
    objections = [finding.name for finding in verdict.objections]
    print(json.dumps([verdict.outcome, objections, list(verdict.unavailable)]))
"""
OTHER_STACK = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
LONG = {"training": {"steps": 16}, "record": {"anchor_stride": 8}}
RUNS: dict[str, Mapping[str, Any]] = {
    "honest": {},
    "sgd": {"optimizer": {"kind": "sgd", "learning_rate": 5e-2, "momentum": 0.9}},
    "bf16": {"training": {"dtype": "bf16"}},
    "slow-start": {"optimizer": {"learning_rate": 1e-5}, "schedule": {"warmup_steps": 16}},
    "still": {"optimizer": {"learning_rate": 1e-12}},
}


@pytest.fixture(scope="module")
def runs(trained: Callable[..., Any], recipe_of: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of this stack, and a forgery that trains at a learning rate 1 % above the declared one."""
    folder = tmp_path_factory.mktemp("stacks")
    config = {"model": {"config": recipe_of().model.config | {"attention_dropout": 0.0}}}
    for name, changes in RUNS.items():
        trained(folder / name, LONG, config, changes)
    find_attack("wrong-rate").forge(folder / "honest", folder / "wrong-rate")
    return folder


@pytest.fixture(scope="module")
def verdicts(runs: Path) -> dict[tuple[str, str], Any]:
    """What a process on another stack says to every run, by name and mode."""
    asked = [("honest", "exact"), *((name, "tolerant") for name in [*RUNS, "wrong-rate"])]
    lines = "".join(f"{runs / name} {mode}\n" for name, mode in asked)
    command = [sys.executable, "-W", "ignore", "-c", AUDIT_ALL]
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, env=os.environ | OTHER_STACK, check=True
    )
    return dict(zip(asked, map(json.loads, done.stdout.splitlines()), strict=True))


def test_another_stack_is_no_ground_for_an_exact_verdict(verdicts: dict[tuple[str, str], Any]) -> None:
    outcome, objections, unavailable = verdicts["honest", "exact"]
    assert (outcome, objections) == ("inconclusive", [])
    assert "different stack" in unavailable[0]
    assert "MKL_CBWR not set → COMPATIBLE" in unavailable[0]
    assert unavailable[0].endswith("needs ATEN_CPU_CAPABILITY and MKL_CBWR not set")


@pytest.mark.parametrize("name", ["honest", "sgd", "bf16"])
def test_an_honest_run_is_accepted_within_the_shipped_limits(verdicts: dict[tuple[str, str], Any], name: str) -> None:
    assert verdicts[name, "tolerant"] == ["accepted", [], []]


def test_a_learning_rate_one_per_cent_too_high_is_rejected(verdicts: dict[tuple[str, str], Any]) -> None:
    outcome, objections, _ = verdicts["wrong-rate", "tolerant"]
    assert outcome == "rejected"
    assert "weights residual" in objections


def test_a_declared_warm_up_from_zero_is_accepted(verdicts: dict[tuple[str, str], Any]) -> None:
    assert verdicts["slow-start", "tolerant"] == ["accepted", [], []]


def test_updates_too_small_to_say_anything_about_are_not_accepted(verdicts: dict[tuple[str, str], Any]) -> None:
    outcome, objections, _ = verdicts["still", "tolerant"]
    assert outcome == "rejected"
    assert "weights update-floor" in objections


def test_a_last_step_at_rate_zero_is_no_infinitesimal_update(
    trained: Callable[..., Any], audited: Callable[..., Any], tmp_path: Path
) -> None:
    trained(tmp_path / "run", {"training": {"steps": 4}, "record": {"anchor_stride": 1}})
    assert audited(tmp_path / "run", mode="tolerant", full=True).verdict.outcome == "accepted"
