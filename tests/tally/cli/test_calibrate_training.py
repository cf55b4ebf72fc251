"""`tally calibrate-training --run`: limits from somebody's own run, and an audit that judges by them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.audits import tolerant
from tallystick.audits.limits import Calibration
from tallystick.tally.calibration import own_run
from tallystick.tally.calibration.stacks import BASE, stack_named
from tallystick.tally.cli.entry import run

Tally = Callable[..., Any]


@pytest.fixture(scope="module")
def limits(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("limits") / "limits.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_run, "graph_stacks", lambda: [BASE, stack_named("portable vector code")])
        assert run(["calibrate-training", str(out), "--run", str(honest), "--segments", "2"]) == 0
    return out


def test_the_limits_are_those_of_the_run_and_know_its_size(limits: Path) -> None:
    found = Calibration.from_bytes(limits.read_bytes().removesuffix(b"\n"), "limits")
    assert {(each.family, each.optimizer, each.dtype) for each in found.entries} == {("language", "adamw", "fp32")}
    assert (found.entries[0].window, found.entries[0].from_step) == (1, 0)
    assert found.entries[-1].from_step > 0
    assert {each.parameters for each in found.entries} == {found.entries[0].parameters}
    assert all(each.weights.overall > 0 for each in found.entries)


def test_an_honest_run_lies_within_its_limits(tally: Tally, honest: Path, limits: Path) -> None:
    told = tally("audit", honest, "--full", "--tolerant", "--calibration", limits, "--json")
    assert told.code == 0
    verdict = json.loads(told.out)
    assert verdict["verdict"] == "accepted"
    assert any("none may be more than 100 times the shipped one" in line for line in verdict["checked"])


def test_a_forged_run_does_not(tally: Tally, honest: Path, limits: Path, tmp_path: Path, rewrite: Tally) -> None:
    from tests.audits.test_tolerant import forged

    false = forged(Path(shutil.copytree(honest, tmp_path / "run")), rewrite, 0.5)
    assert tally("audit", false, "--full", "--tolerant", "--calibration", limits).code == 1


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (("--run", "{run}", "--quick"), 2, "--run takes none of --quick"),
        (("--run", "{folder}/none"), 4, "no such run directory"),
    ],
)
def test_bad_input_is_one_line(
    tally: Tally, honest: Path, tmp_path: Path, options: tuple[str, ...], code: int, reason: str
) -> None:
    told = tally(
        "calibrate-training", tmp_path / "out.json", *(each.format(run=honest, folder=tmp_path) for each in options)
    )
    assert (told.code, told.err.count("\n")) == (code, 1)
    assert reason in told.err


def test_limits_without_a_tolerant_audit_are_refused(tally: Tally, honest: Path, limits: Path) -> None:
    told = tally("audit", honest, "--calibration", limits)
    assert told.code == 2
    assert "takes --tolerant" in told.err


CHAOTIC = {
    "optimizer": {"learning_rate": 0.3, "clip_norm": None},
    "schedule": {"kind": "constant", "warmup_steps": 0},
    "training": {"steps": 8},
    "record": {"anchor_stride": 8, "summaries": ["exact", "projection"]},
}


def noisy(run: Path, share: float) -> Path:
    """The run with noise of a share of its update in the final weights; everything is made anew."""
    from tallystick.core.tensors import Tensor
    from tallystick.formats.store.run import RunDirectory
    from tallystick.tally.attacks.forging import read_anchor, replace_anchor

    forged, generator = RunDirectory(run), np.random.default_rng(1)
    before, after = read_anchor(forged, 0), dict(read_anchor(forged, 8))
    for name in [name for name in after if name.startswith("weights.")]:
        values, moved = after[name].array(), after[name].array() - before[name].array()
        noise = share * np.sqrt(np.square(moved).mean()) * generator.standard_normal(moved.shape)
        after[name] = Tensor.of((values + noise).astype(np.float32))
    replace_anchor(forged, 8, after)
    return run


def test_limits_of_a_chaotic_run_accept_no_noise(
    tally: Tally, trained: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise of a tenth of the update lies within them; the verdict says that they are too wide to tell."""
    trained(tmp_path / "run", CHAOTIC)
    noisy(tmp_path / "run", 0.1)
    monkeypatch.setattr(own_run, "graph_stacks", lambda: [BASE, stack_named("portable vector code")])
    limits = tmp_path / "limits.json"
    assert run(["calibrate-training", str(limits), "--run", str(tmp_path / "run"), "--segments", "2"]) == 0
    told = tally("audit", tmp_path / "run", "--full", "--tolerant", "--calibration", limits)
    assert (told.code, "objection" in told.out) == (3, False), told
    assert "steps 1–8: the policy's limits are too wide (" in told.out
    monkeypatch.setattr(tolerant, "too_wide", lambda entry: [])
    assert tally("audit", tmp_path / "run", "--full", "--tolerant", "--calibration", limits).code == 0
