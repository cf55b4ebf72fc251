"""The committed figures on small changes: the page and the shipped table are made of them, and say no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.real.more_evidence import CEILINGS, OPENED, cheats_of, drawn_of, honest_of, limit_of, render_more
from research.real.power import DATA, LENGTHS, PAGE, POOLED, SUBJECTS
from research.real.power_answers import CHEATS, SYSTEMS
from research.real.power_page import render
from tallystick.audits.answers.limits import shipped_calibration
from tallystick.audits.answers.power import CheatPower, shipped_power

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures() -> dict[str, object]:
    found: dict[str, object] = json.loads((ROOT / DATA).read_text())
    return found


def test_the_page_is_made_of_the_data(figures: dict[str, object]) -> None:
    more = render_more(*(json.loads((ROOT / each).read_text()) for each in (OPENED, CEILINGS)))
    assert (ROOT / PAGE).read_text() == "\n".join([*render(figures), *more]) + "\n"


def test_the_shipped_power_is_that_of_the_study(figures: dict[str, object]) -> None:
    measured = [CheatPower.from_json(each, "figures") for each in figures["cheats"]]  # type: ignore[attr-defined]
    [shipped] = [each for each in shipped_power().models if each.model == figures["model"]]
    assert [each for each in shipped.cheats if each.cheat in SUBJECTS and not each.opened] == measured
    opened = [*cheats_of(json.loads((ROOT / OPENED).read_text()))]
    assert [each for each in shipped.cheats if each.opened] == opened
    assert {each.cheat for each in measured} == set(SUBJECTS) == set(CHEATS) - {"honest"}
    assert {(each.tokens, each.pooled) for each in measured} <= {*((n, 1) for n in LENGTHS), (LENGTHS[-1], POOLED)}


def test_the_shipped_limits_are_those_of_the_study(figures: dict[str, object]) -> None:
    found = {f"{each.place}, {each.tokens}": [each.largest, each.ratio] for each in shipped_calibration().rounding}
    layer = limit_of(json.loads((ROOT / OPENED).read_text()))
    assert found == {**figures["limits"], "layer, 1": [*layer]}  # type: ignore[dict-item]


def test_no_honest_layer_is_rejected_and_small_changes_are() -> None:
    opened = json.loads((ROOT / OPENED).read_text())
    _, allowed = limit_of(opened)
    layers = [each for held in honest_of(opened).values() for one in held for each in one["ratios"]]
    assert len(layers) >= 500
    assert max(layers) <= allowed
    assert not any(any(drawn_of(one, allowed)) for held in honest_of(opened).values() for one in held)
    for each in cheats_of(opened):
        assert each.seen / each.of >= (0.95 if each.pooled > 1 else 0.8), each


def test_an_oracle_sees_what_the_page_says() -> None:
    ceilings = json.loads((ROOT / CEILINGS).read_text())
    assert all(ceilings[each]["power"]["8"][1] >= 0.95 for each in ("int8 tokens", "tuned"))


def test_no_honest_answer_was_rejected(figures: dict[str, object]) -> None:
    honest = figures["honest"]
    assert isinstance(honest, dict)
    assert honest["answers"] >= 500
    assert (honest["rejected"], honest["pools_rejected"]) == (0, 0)


def test_one_word_of_a_system_prompt_is_exchanged() -> None:
    for text, word, other in SYSTEMS:
        words, changed = text.split(), text.replace(word, other).split()
        assert sum(a != b for a, b in zip(words, changed, strict=True)) == 1
