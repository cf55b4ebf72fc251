"""A dispute between processes of their own over HTTP: every one is killed in the middle, and the bond moves once."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")
pytest.importorskip("fastapi")

from tallystick.core.http.server import address_of, bind
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.game.state import Dispute, State
from tests.tally.cli.programs import PATIENCE_S, Program, Programs, await_, running
from tests.tally.cli.test_parties import DisputeSetup, calls

Tally = Callable[..., Any]
__all__ = ["calls"]
RULES = {"withdrawal_delay": 1, "challenge_window": 3600, "committee": 1}


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with running(tmp_path / "programs") as found:
        yield found


@pytest.fixture
def setup(tally: Tally, tmp_path: Path) -> DisputeSetup:
    return DisputeSetup(tmp_path, tally, **RULES)


@pytest.fixture
def place(setup: DisputeSetup) -> Iterator[LocalCoordinator]:
    """The database that the server serves, read beside it."""
    with closing(LocalCoordinator.open(setup.db)) as found:
        yield found


def serve(programs: Programs, setup: DisputeSetup) -> tuple[Program, str]:
    """A server at a port that stays its own, and its address."""
    with closing(bind("127.0.0.1", 0)) as listening:
        url = address_of(listening)
    words = ("--referee", setup.folder / "referee", "--grace", 0, "--poll", 0.1, "--port", url.rsplit(":", 1)[1])
    server = programs.start("server", "coordinator", "serve", "--db", setup.db, *words)
    await_(lambda: "\n" in server.out, programs)
    return server, url


def test_programs_that_are_killed_play_on_and_the_bond_moves_once(
    programs: Programs, setup: DisputeSetup, place: LocalCoordinator, calls: Path
) -> None:
    server, url = serve(programs, setup)

    def at(name: str) -> tuple[object, ...]:
        return ("--coordinator", url, "--key", setup.folder / name, "--poll", 0.1)

    prover = programs.start("prover", "prover", calls / "forged", *at("prover"))
    challenger = programs.start("challenger", "challenger", "--watch", "--whole", *at("challenger"))
    await_(lambda: bool(place.state.disputes), programs)
    prover.kill_and_start_again()
    await_(lambda: the(place.state).turn > 1, programs)
    challenger.kill_and_start_again()
    server.kill_and_start_again()
    assert prover.process.wait(120) == 1, prover.err
    assert "claim 0\n" in prover.out
    await_(lambda: not place.state.owed.keys() & {setup.keys["challenger"].public}, programs)

    assert [challenger.interrupt(), server.interrupt()] == [0, 0]
    assert "claim 0: differs: " in challenger.err
    assert challenger.err.endswith("stopped; all moves are kept: start again to go on\n")
    assert server.err.endswith("stopped\n")
    for each in (challenger, server):
        assert "Traceback" not in each.err
    state = place.state
    assert (the(state).fault, state.claims[0].status) == ("prover", "slashed")
    turns = [entry.move.turn for entry in place.entries() if hasattr(entry.move, "turn")]
    assert turns == list(range(len(turns)))
    kinds = Counter(entry.move.kind for entry in place.entries())
    assert (kinds["post"], kinds["contest"], kinds["rule"]) == (1, 1, 1)
    purses = {name: place.purse(setup.keys[name].public) for name in ("prover", "challenger")}
    assert purses == {"prover": 1_000_000, "challenger": 2_500_000}


def test_a_prover_that_is_stopped_before_its_claim_is_final_says_so(
    programs: Programs, setup: DisputeSetup, place: LocalCoordinator, calls: Path
) -> None:
    prover = programs.start("prover", "prover", calls / "honest", *setup.at("prover"), "--poll", 0.1)
    await_(lambda: prover.out == "claim 0\n" and "waiting" in prover.err, programs)  # while the claim is open
    assert prover.interrupt() == 3
    deadline, waiting, claim, money, stopped = prover.err.splitlines()
    assert "leave this program running" in deadline
    assert re.fullmatch(r"waiting for claim 0 to become final: .* until .* UTC \(in .*\)", waiting)
    assert claim == "claim 0 is open: nobody has contested it"
    assert money.endswith("(this party): paid in 1,000,000, took out 0, has 1,000,000 held; +0")
    assert stopped == "stopped: claim 0 is open; all moves are kept: start again before somebody disputes it"


def test_a_party_that_is_terminated_ends_in_one_line_and_can_be_started_again(
    programs: Programs, setup: DisputeSetup
) -> None:
    words = ("challenger", "--watch", *setup.at("challenger"), "--poll", 0.1)
    terminated = programs.start("terminated", *words)
    await_(lambda: "waiting for claims" in terminated.err, programs)
    terminated.process.send_signal(signal.SIGTERM)
    assert terminated.process.wait(PATIENCE_S) == 143
    assert terminated.err.splitlines()[1:] == ["tally: terminated"]
    again = programs.start("again", *words)
    await_(lambda: "waiting for claims" in again.err, programs)
    assert again.interrupt() == 0


def the(state: State) -> Dispute:
    """The only dispute."""
    [dispute] = state.disputes
    return dispute
