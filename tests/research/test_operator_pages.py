"""The page of attacks says who saw what, and the study complains where something came out as it must not."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from research.operator_study import COMMAND, SIZES, Figures
from research.operators.attacks import Judged, Searched
from research.operators.page import render_attacks, render_calibration
from tests.support.attacks.inference.nudge import Effort

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = Path(__file__).parents[2] / "research" / "operator_study.py"
REGIONS = ("deterministic bound", "calibrated threshold")


def figures(succeeded: int = 0, accused: int = 0) -> dict[str, Any]:
    cheats = [Judged("m", "honest", region, 5, accused, 0, 0.0) for region in REGIONS]
    cheats += [Judged("m", "layer-skipped", region, 5, 5, 2, 3.4) for region in REGIONS]
    searches = [Searched("m", REGIONS[0], 5, 2, 1, (0.5, 1.5, 2.5, 0.1, 0.2), 90)]
    searches += [Searched("m", REGIONS[1], 5, succeeded, 0, (0.01,) * 5, 90)]
    return {
        "machine": "here",
        "effort": asdict(Effort()),
        "starts": {"m": 7},
        "cheats": [asdict(row) for row in cheats],
        "searches": [asdict(row) for row in searches],
    }


def test_each_fraud_is_a_row_with_a_cell_for_each_judge() -> None:
    page = render_attacks(figures(), "a command")
    assert "| m | layer-skipped | 5 | 5 | 5 | 3.4 | 2 |" in page
    assert "| m | honest | 5 | 0 | 0 | 0.0 | 0 |" in page
    assert "objected to 5 of 5 fraudulent claims" in page


def test_a_rate_is_over_the_inputs_that_are_no_ties() -> None:
    page = render_attacks(figures(), "a command")
    assert "| m | deterministic bound | 5 | 1 | 2 | [0.068, 0.932] | 0.5 | 2.5 |" in page


def test_a_stack_that_the_bound_rejects_is_told_beside_the_rate() -> None:
    row = {"stack": "odd", "alike": [], "runs": 9, "rejected": 0, "rate_low": 0.0, "rate_high": 0.3, "where": "n0 op"}
    row |= {"stretch": [1.0, 1.0, None], "beyond": {"n4 cos": 629.0}, "results": 1, "skipped": 0, "differs": 0.5}
    study = {"model": "m", "graph": "sha256:00", "operators": 1, "machines": ["here"], "inputs": 18, "safety": 3.0}
    study |= {"stacks": [], "kinds": [], "safeties": [], "left_out": [row]}
    page = render_calibration([study], "a command")
    assert "0 of 9 runs rejected by thresholds" in page
    assert "up to 9 on odd are rejected by the **bound** at `n4 cos`" in page
    assert "∞" in page


@pytest.mark.parametrize(
    ("succeeded", "accused", "code", "complaint"),
    [(0, 0, 0, ""), (1, 0, 1, "was left open"), (0, 1, 1, "rejects an honest run")],
)
def test_the_study_fails_where_a_claim_of_its_page_does_not_hold(
    succeeded: int, accused: int, code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    complain = runpy.run_path(str(SCRIPT))["complain"]
    found = figures(succeeded, accused)
    assert complain(found["cheats"], found["searches"]) == code
    assert complaint in capsys.readouterr().err


def test_the_pages_show_the_data_beside_them() -> None:
    calibrations = json.loads((DOCS / "data" / "calibration.json").read_text())
    attacks = json.loads((DOCS / "data" / "inference_attacks.json").read_text())
    assert (DOCS / "calibration.md").read_text() == render_calibration(calibrations, COMMAND)
    assert (DOCS / "inference_attacks.md").read_text() == render_attacks(attacks, COMMAND)


def test_a_model_that_is_not_run_keeps_its_figures(tmp_path: Path) -> None:
    assert Figures.read(tmp_path) == Figures([], [], [], {})
    held = Figures.read(DOCS / "data")
    rows = ([{"model": "minilm", "cheat": "honest"}], [{"model": "minilm", "region": "any"}])
    found = held.with_model("minilm", SIZES["minilm"], {"model": "minilm"}, *rows)
    assert [each["model"] for each in found.calibrations] == list(SIZES)
    assert (found.cheats[-1:], found.searches[-1:]) == rows
    assert found.cheats[:-1] == [row for row in held.cheats if row["model"] != "minilm"]


@pytest.mark.slow
def test_the_study_runs_from_the_command(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)], check=True, timeout=280)
    assert {path.name for path in tmp_path.glob("*.md")} == {"calibration.md", "inference_attacks.md"}
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "calibration.json",
        "inference_attacks.json",
        "profile-digits-cnn.json",
    }
