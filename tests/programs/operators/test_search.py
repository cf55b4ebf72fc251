"""The search for honest results outside their bounds, and what it found last."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.programs.operators.examples import call
from tests.programs.operators.searched import SETTINGS, Searched, calls, renumbered

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "research" / "bound_search.py"
DATA = json.loads((ROOT / "docs" / "data" / "bound_search.json").read_text())


def searched(setting: str, *asked: str) -> Searched:
    """What one setting gives, in a process of its own."""
    environment = {**os.environ, **SETTINGS[setting].environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--one", setting, *asked]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Searched.from_json(json.loads(done.stdout.splitlines()[-1]))


def test_the_last_search_ran_every_setting_and_found_nothing_outside() -> None:
    assert DATA["settings"].keys() == SETTINGS.keys()
    assert min(DATA["settings"].values()) > 5000
    assert {name: share for name, share in DATA["largest"].items() if share > 1} == {}
    assert f"{DATA['calls']:,} calls" in (ROOT / "docs" / "bounds.md").read_text()


def test_numbers_are_drawn_again_and_stay_within_0_and_1() -> None:
    x = np.ones((2, 3), np.float32)
    rng = np.random.default_rng(0)
    drawn = {
        renumbered(call("aten.lerp.Scalar", self=x, end=x, weight=0.25), rng).arguments["weight"] for _ in range(9)
    }
    assert len(drawn) > 3
    assert all(0 < number < 1 for number in drawn)


def test_layers_of_real_models_are_searched_in_every_dtype() -> None:
    found = [(each.arguments["input"], dtype) for each, dtype in calls(0, "convolution.default")]
    assert {dtype for _, dtype in found} == {"F32", "BF16", "F16", "F64"}


def test_one_setting_runs_in_a_process_of_its_own() -> None:
    found = searched("oneDNN SSE41", "--draws", "1", "--only", "conv_transpose")
    assert found.calls > 10
    assert max(share for share, _ in found.shares.values()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_nothing_honest_is_outside_under_any_setting(setting: str) -> None:
    assert {name: shown for name, (share, shown) in searched(setting).shares.items() if share > 1} == {}
