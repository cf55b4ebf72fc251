"""What was measured of layers in fewer bits (`research/dispute_downgrades.py`): none is silent, every contest won."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[3] / "docs" / "data" / "dispute_downgrades.json"


@pytest.fixture(scope="module")
def found() -> Any:
    return json.loads(DATA.read_text())


def test_no_honest_output_came_near_the_limit(found: Any) -> None:
    assert found["honest"]["outputs"] >= 500
    assert found["honest"]["doubted"] == 0
    assert 0 < max(each["largest_of_limit"] for each in found["honest"]["models"].values()) < 0.1


def test_every_cheaper_layer_was_contested_or_named_and_every_contest_was_won(found: Any) -> None:
    for counts in found["forged"].values():
        assert counts["after"] + counts["named"] == counts["n"]
        assert counts["convicted"] == counts["after"] >= counts["before"]
