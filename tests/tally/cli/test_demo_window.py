"""The window of claims follows from an audit, and neither party can change it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")

from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.parties import auditing
from tallystick.tally.attacks.provers import forge_swapped_layer
from tests.support.attacks.disputes.scene import WEIGHT, record_calls

Tally = Callable[..., Any]


@pytest.fixture(scope="module")
def calls(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded calls in `honest`, and with a swapped layer in `forged`. Never write into them."""
    folder = tmp_path_factory.mktemp("calls")
    record_calls(folder / "honest")
    forge_swapped_layer(folder / "honest", folder / "forged", WEIGHT)
    return folder


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit takes a minute."""
    times = iter(range(0, 6000, 60))
    monkeypatch.setattr(auditing.time, "perf_counter", lambda: float(next(times)))


def rules_at(db: Path) -> tuple[int, int, int]:
    """Window, clock and extension of the rules that a coordinator was set up with."""
    with closing(LocalCoordinator.open(db)) as place:
        return place.rules.challenge_window, place.rules.clock, place.rules.extension


def test_the_window_of_a_coordinator_for_trying_is_that_of_forty_audits(
    tally: Tally, calls: Path, tmp_path: Path, slow: None
) -> None:
    db = tmp_path / "court" / "court.db"
    made = tally("coordinator", "init", "--demo", "--db", db, "--window-for", calls / "honest")
    assert made.code == 0, made.err
    assert "Claims can be contested for 40 min" in made.err
    assert rules_at(db) == (2400, 960, 160)


def test_without_a_run_to_time_it_is_five_minutes(tally: Tally, tmp_path: Path) -> None:
    db = tmp_path / "court" / "court.db"
    assert "Claims can be contested for 5 min" in tally("coordinator", "init", "--demo", "--db", db).err
    assert rules_at(db) == (300, 120, 20)


def test_a_longer_window_in_the_rules_stays(tally: Tally, calls: Path, tmp_path: Path, slow: None) -> None:
    db = tmp_path / "court.db"
    assert tally("coordinator", "init", "--db", db, "--window-for", calls / "honest").code == 0
    assert rules_at(db)[0] == 7 * 24 * 3600


def test_a_run_that_is_not_right_times_nothing(tally: Tally, calls: Path, tmp_path: Path) -> None:
    made = tally("coordinator", "init", "--demo", "--db", tmp_path / "c.db", "--window-for", calls / "forged")
    assert made.code == 2
    assert "no claim to time an audit with: call 1" in made.err
    assert not (tmp_path / "c.db").exists()
