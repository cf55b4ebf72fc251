import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUDY = runpy.run_path(str(ROOT / "research" / "bucket_agreement.py"))
RECORDED = json.loads((ROOT / "docs" / "data" / "bucket_agreement.json").read_text())


def test_the_page_is_rendered_from_the_data_beside_it():
    assert STUDY["render"](RECORDED) == (ROOT / "docs" / "bucket_agreement.md").read_text()


def test_a_recorded_point_is_measured_again_alike():
    recorded = next(each for each in RECORDED["points"] if each["agreed"] not in (0, each["trials"]))
    again = STUDY["point"](recorded["tolerance"], recorded["weights"], recorded["relative_drift"], recorded["trials"])
    assert again.agreed == pytest.approx(recorded["agreed"], abs=2)


def test_theory_lies_within_the_measured_intervals_as_often_as_it_should():
    inside = [each["low"] <= each["theory"] <= each["high"] for each in RECORDED["points"]]
    assert sum(inside) >= 0.9 * len(inside)
