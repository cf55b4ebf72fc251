from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.tally.attacks.catalogue import ATTACKS, AUDITS
from tests.support.attacks.openings.attack import JUDGES
from tests.support.attacks.openings.catalogue import OPENING_ATTACKS

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    data = json.loads((DOCS / "data" / "falsifiability.json").read_text())
    return {row["attack"]: row for row in data["rows"]}


def test_the_committed_table_holds_every_attack_and_no_other(rows: dict[str, Any]) -> None:
    assert list(rows) == list(ATTACKS)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_committed_answers_are_the_expected_ones(name: str, rows: dict[str, Any]) -> None:
    attack, row = ATTACKS[name], rows[name]
    assert row["change"] == attack.change
    for audit in AUDITS:
        expected, answer = attack.expected(audit), row["answers"][audit]
        assert answer["as_expected"]
        assert answer["outcome"] == expected.outcome
        assert set(expected.checks) <= set(answer["checks"])


def test_the_page_has_a_line_for_every_attack() -> None:
    lines = (DOCS / "falsifiability.md").read_text().splitlines()
    assert [
        name for name in ATTACKS if sum(line.startswith(f"| `{name}` | {ATTACKS[name].change}") for line in lines) != 1
    ] == []


@pytest.fixture(scope="module")
def openings() -> dict[str, Any]:
    data = json.loads((DOCS / "data" / "falsifiability.json").read_text())
    return {row["attack"]: row for row in data["openings"]}


def test_the_committed_table_holds_every_opening_and_its_expected_answers(openings: dict[str, Any]) -> None:
    assert list(openings) == list(OPENING_ATTACKS)
    lines = (DOCS / "falsifiability.md").read_text().splitlines()
    for name, attack in OPENING_ATTACKS.items():
        assert sum(line.startswith(f"| `{name}` | {attack.change}") for line in lines) == 1
        for judge in JUDGES:
            answer = openings[name]["answers"][judge]
            assert answer["as_expected"]
            assert answer["outcome"] == attack.expected(judge).outcome


def test_what_stays_free_is_stated_with_its_size() -> None:
    freedom = json.loads((DOCS / "data" / "falsifiability.json").read_text())["undetermined"]
    text = (DOCS / "falsifiability.md").read_text()
    assert [each["precision"] for each in freedom] == ["fp32", "bf16"]
    for each in freedom:
        assert each["undetermined"] > 0
        assert f"{each['loss_honest']:.6f} | {each['loss_forged']:.6f}" in text


def test_the_page_says_on_what_it_was_made() -> None:
    facts = json.loads((DOCS / "data" / "falsifiability.json").read_text())["circumstances"]
    text = (DOCS / "falsifiability.md").read_text()
    assert facts["machine"] in text
    assert facts["torch"] in text
    assert f"{facts['parameters']:,} parameters" in text
    assert facts["outcome_with_the_provers_nonce"] == "accepted"
