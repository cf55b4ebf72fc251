"""The committed figures on small changes: the page and the shipped table are made of them, and say no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.real.power import DATA, LENGTHS, PAGE, POOLED, SUBJECTS
from research.real.power_answers import CHEATS, SYSTEMS
from research.real.power_page import render
from tallystick.audits.answers.distance_limits import shipped_calibration
from tallystick.audits.answers.power import CheatPower, shipped_power

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures() -> dict[str, object]:
    found: dict[str, object] = json.loads((ROOT / DATA).read_text())
    return found


def test_the_page_is_made_of_the_data(figures: dict[str, object]) -> None:
    assert (ROOT / PAGE).read_text() == "\n".join(render(figures)) + "\n"


def test_the_shipped_power_is_that_of_the_study(figures: dict[str, object]) -> None:
    measured = [CheatPower.from_json(each, "figures") for each in figures["cheats"]]  # type: ignore[attr-defined]
    [shipped] = [each for each in shipped_power().models if each.model == figures["model"]]
    assert [each for each in shipped.cheats if each.cheat in SUBJECTS] == measured
    assert {each.cheat for each in measured} == set(SUBJECTS) == set(CHEATS) - {"honest"}
    assert {(each.tokens, each.pooled) for each in measured} <= {*((n, 1) for n in LENGTHS), (LENGTHS[-1], POOLED)}


def test_the_shipped_limits_are_those_of_the_study(figures: dict[str, object]) -> None:
    found = {each.place: [each.largest, each.ratio] for each in shipped_calibration().rounding}
    assert found == figures["limits"]


def test_no_honest_answer_was_rejected(figures: dict[str, object]) -> None:
    honest = figures["honest"]
    assert isinstance(honest, dict)
    assert honest["answers"] >= 500
    assert (honest["rejected"], honest["pools_rejected"]) == (0, 0)


def test_one_word_of_a_system_prompt_is_exchanged() -> None:
    for text, word, other in SYSTEMS:
        words, changed = text.split(), text.replace(word, other).split()
        assert sum(a != b for a, b in zip(words, changed, strict=True)) == 1
