"""The house is no larger than its budgets."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = runpy.run_path(str(ROOT / "scripts" / "house.py"))
FIGURES, BUDGETS = HOUSE["figures"](), HOUSE["budgets"]()


def test_every_figure_has_a_budget_and_every_budget_a_figure() -> None:
    assert FIGURES.keys() == BUDGETS.keys()


@pytest.mark.parametrize("name", BUDGETS)
def test_a_figure_is_within_its_limit(name: str) -> None:
    assert FIGURES[name] <= BUDGETS[name].limit, "`python scripts/house.py` prints every figure"


def test_every_exception_is_one() -> None:
    assert {*HOUSE["long_signatures"](), *HOUSE["wide_dataclasses"]()} >= HOUSE["EXCEPTIONS"].keys()


def test_limits_are_lowered_and_never_raised() -> None:
    smaller = HOUSE["lower"]({name: figure - 1 for name, figure in FIGURES.items()})
    assert smaller != (ROOT / "budgets.toml").read_text()
    assert (
        HOUSE["lower"]({name: budget.limit + 1 for name, budget in BUDGETS.items()})
        == (ROOT / "budgets.toml").read_text()
    )


def test_lines_have_room_for_a_small_repair_and_counts_have_none() -> None:
    assert [HOUSE["room_for"](figure) for figure in (7, 6_880, 6_900)] == [7, 6_900, 6_900]


def test_what_is_counted(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text("# why\ndef f():\n    from tallystick.core import digests  # late\n    return '#'\n")
    assert HOUSE["comments"](source) == 2
    assert HOUSE["imports_in_functions"](source) == 1
    assert not HOUSE["is_empty_package"](source)
