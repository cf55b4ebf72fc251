"""`docs/disputes.md` is about the game as it is: its table, its rows, and what the simulator did."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tallystick.disputes.game.state import Rules
from tests.disputes.simulator.mutants import WRONG
from tests.disputes.test_dispute_vectors import table
from tests.support.simulator.limits import longest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "disputes.md").read_text()
FIGURES = json.loads((DOCS / "data" / "simulation.json").read_text())
ROWS = {
    *(f"D-{number:02}" for number in range(1, 17)),
    *(f"G{number}" for number in range(1, 7)),
    *(f"E{number}" for number in range(1, 6)),
}


def test_the_table_is_that_of_the_game() -> None:
    assert table() in PAGE


def test_every_row_has_its_tests() -> None:
    rows = [line.split("|")[1:] for line in PAGE.splitlines() if re.match(r"\| [DGE]-?\d", line)]
    assert {name.strip() for row in rows for name in row[0].split(",")} == ROWS
    assert all("](../" in row[2] for row in rows)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", PAGE))))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (DOCS / link).exists()


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"{len(WRONG)} rules are made wrong" in " ".join(PAGE.split())
    assert round(longest(Rules(treasury="0" * 64)) / 86_400, 1) == 20.3
    assert "20.3 days of game time with the default rules" in " ".join(PAGE.split())


def test_what_was_simulated_is_quoted() -> None:
    share = f"{FIGURES['longest_dispute_of_its_bound']:.0%}"
    said = (
        f"The last long run: {FIGURES['events']:,} events in {FIGURES['worlds']:,} worlds, {FIGURES['accepted']:,} "
        f"moves accepted and {FIGURES['refused']:,} refused, in {FIGURES['seconds']:,} s on one core of "
        f"{FIGURES['machine']}; nothing broke, and the longest dispute took {share} of its bound."
    )
    assert said in " ".join(PAGE.split())
    assert FIGURES["events"] >= 10_000_000
