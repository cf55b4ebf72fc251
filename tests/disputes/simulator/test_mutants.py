"""The simulator finds games that lack a check or have a wrong rule; tests find the few others."""

from __future__ import annotations

import pytest

from tests.support.simulator.invariant_checker import BrokenError
from tests.support.simulator.simulation import simulate

from .mutants import WRONG, Check, checks, without

UNSEEN = {
    Check("game", "_fits_the_dispute", "settled"),  # the phase refuses the same moves, under another code
    Check("game", "prove", "level"),  # no record of the simulation can pass for an operator
}
"""Checks whose loss the simulator cannot see; `test_game.py` removes each check, these too."""
EVENTS = 400_000
START = {
    "votes cannot be held against a member": 310,
    "no proof is checked": 120,
    "a member comes back without its duties": 105,
    Check("voting", "enlist", "enlisted"): 100,
    Check("voting", "_seat", "actor"): 75,
}
"""The world to begin with, where the first hundred or so show nothing."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_found(name: str) -> None:
    with WRONG[name](), pytest.raises(BrokenError, match="seed 'm'"):
        simulate("m", EVENTS, START.get(name, 0))


@pytest.mark.parametrize("check", [check for check in checks() if check not in UNSEEN], ids=str)
def test_a_missing_check_is_found(check: Check) -> None:
    with without(check), pytest.raises(BrokenError, match="seed 'm'"):
        simulate("m", EVENTS, START.get(check, 0))


def test_the_game_as_it_is_passes_where_they_fail() -> None:
    for start in (0, *START.values()):
        assert simulate("m", 4_000, start).events >= 4_000


def test_enough_rules_are_tried() -> None:
    assert len(WRONG) >= 15
    assert len(checks()) - len(UNSEEN) >= 40
