"""Many events from one seed: every law after every move, every dispute ends, and a seed happens again exactly."""

from __future__ import annotations

import pytest

from tallystick.disputes.game.game import TRANSITIONS
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.invariant_checker import BrokenError
from tests.support.simulator.simulation import Report, simulate, world_of
from tests.support.simulator.world import World

from .mutants import WRONG

EVENTS = 100_000


@pytest.fixture(scope="module")
def report() -> Report:
    return simulate("in every run of the tests", events=EVENTS)


def test_no_event_breaks_anything(report: Report) -> None:
    assert report.events >= EVENTS
    assert report.total("accepted") > 15_000
    assert report.total("refused") > 5_000
    assert report.slowest < 1.0


def test_every_move_every_end_and_every_trouble_happened_often(report: Report) -> None:
    assert [kind for kind in TRANSITIONS if report.counts[f"accepted {kind}"] < 20] == []
    assert [fault for fault in Fault if report.counts[f"ended {fault}"] < 100] == []
    for trouble in ("reorganisation", "censorship", "restart", "party restarted"):
        assert report.counts[trouble] > 50, trouble


CODES = {
    *("paused", "unknown", "settled", "open", "moot", "phase", "actor", "turn", "late", "value", "closed", "window"),
    *("self", "range", "early", "disputed", "cuts", "child", "level", "proof", "enlisted", "serving", "again"),
    *("commitment", "pool", "seal", "rest", "running", "nothing", "evidence"),
}


def test_every_refusal_of_the_game_was_met(report: Report) -> None:
    assert {name.split()[1] for name in report.counts if name.startswith("refused")} == CODES


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_million_events_break_nothing() -> None:
    assert simulate("ten million", events=10_000_000).slowest < 1.0


@pytest.mark.parametrize("number", range(12))
def test_a_world_happens_again_bit_by_bit(number: int) -> None:
    first, second = world_of("again", number), world_of("again", number)
    first.run()
    second.run()
    assert first.digest.hexdigest() == second.digest.hexdigest()
    assert (first.place.head, first.queue.events, first.counts) == (
        second.place.head,
        second.queue.events,
        second.counts,
    )


def test_worlds_of_another_seed_or_number_are_others() -> None:
    digests = set()
    for world in (world_of("a", 0), world_of("a", 1), world_of("b", 0)):
        world.run()
        digests.add(world.digest.hexdigest())
    assert len(digests) == 3


def test_a_failure_names_its_seed_and_world_and_happens_there_again() -> None:
    """With a rule that is wrong on purpose."""
    with WRONG["no extension"]():
        with pytest.raises(BrokenError, match=r"seed 'broken', world \d+, event \d+") as found:
            simulate("broken", events=100_000)
        number = int(str(found.value).split("world ")[1].split(",")[0])
        with pytest.raises(BrokenError) as again:
            world_of("broken", number).run()
        assert str(again.value) in str(found.value)
    world_of("broken", number).run()


def test_an_empty_world_ends_too() -> None:
    assert simulate("nothing", events=0).worlds == 0
    assert isinstance(world_of("x", 0), World)
