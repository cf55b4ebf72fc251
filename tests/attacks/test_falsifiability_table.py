from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.attacks import ATTACKS, AUDITS

DOCS = Path(__file__).parents[2] / "docs"


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
        assert expected.outcome == "refused" or set(expected.checks) <= set(answer["checks"])


def test_the_page_has_a_line_for_every_attack() -> None:
    lines = (DOCS / "falsifiability.md").read_text().splitlines()
    assert [
        name for name in ATTACKS if sum(line.startswith(f"| `{name}` | {ATTACKS[name].change}") for line in lines) != 1
    ] == []


def test_the_page_says_on_what_it_was_made() -> None:
    facts = json.loads((DOCS / "data" / "falsifiability.json").read_text())["circumstances"]
    text = (DOCS / "falsifiability.md").read_text()
    assert facts["machine"] in text
    assert facts["torch"] in text
    assert f"{facts['parameters']:,} parameters" in text
    assert facts["outcome_with_the_provers_nonce"] == "accepted"
