"""`tally coordinator`: setting up, granting, showing and serving, in this process and in one of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError, TallyError, UnavailableError, UsageError
from tallystick.disputes.coordinators.local.client import RemoteCoordinator
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.game.moves import Concede
from tallystick.disputes.game.state import Status
from tallystick.tally.cli.application import application
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.conformance import MEMBERS, Play, usual_rules
from tests.disputes.coordinators.local.keys import PURSE, key_of, party_of

COMMAND = "from tallystick.tally.cli.application import application; application().main()"


def tally(*words: object) -> Any:
    """The exit code of `tally coordinator`, run in this process; a command that returns nothing exits with 0."""
    return application().main(["coordinator", *map(str, words)], "tally", standalone_mode=False) or 0


def write_rules(path: Path, **changes: Any) -> Path:
    document = usual_rules(party_of).model_copy(update=changes).to_json()
    assert isinstance(document, dict)
    path.write_bytes(encode({name: value for name, value in document.items() if value is not None}))
    return path


def test_a_coordinator_is_set_up_granted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = tmp_path / "coordinator.db"
    assert tally("init", "--db", db, "--rules", write_rules(tmp_path / "rules.json")) == 0
    identity = capsys.readouterr().out.split()[1]
    assert tally("grant", party_of("prover"), 500, "--db", db) == 0
    assert tally("grant", party_of("prover"), 100, "--out", "--db", db) == 0
    assert capsys.readouterr().out == "500\n400\n"
    assert tally("show", "--db", db, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["coordinator"], shown["entries"], shown["purses"]) == (identity, 0, {party_of("prover"): 400})
    assert tally("show", "--db", db) == 0
    assert identity in capsys.readouterr().out


def test_the_coordinator_is_its_own_beacon_and_treasury_unless_the_rules_name_others(tmp_path: Path) -> None:
    members = tmp_path / "members"
    members.write_text("".join(f"{party_of(name)}\n\n" for name in MEMBERS))
    tally("init", "--db", tmp_path / "a.db", "--members", members, "--referee", party_of("referee"))
    with closing(LocalCoordinator.open(tmp_path / "a.db")) as place:
        assert (place.rules.beacon, place.rules.treasury) == (place.charter.key,) * 2
        assert (place.rules.referee, len(place.rules.members)) == (party_of("referee"), len(MEMBERS))
    key = tmp_path / "coordinator.key"
    key_of("coordinator").write(key)
    rules = write_rules(tmp_path / "rules.json", beacon=party_of("bystander"))
    tally("init", "--db", tmp_path / "b.db", "--rules", rules, "--key", key)
    with closing(LocalCoordinator.open(tmp_path / "b.db", key_of("coordinator"))) as place:
        assert (place.rules.beacon, place.rules.treasury) == (party_of("bystander"), party_of("treasury"))


Arrange = Callable[[Path], list[object]]
MISTAKES: dict[str, tuple[type[TallyError], Arrange]] = {
    "no database": (UnavailableError, lambda folder: ["show", "--db", folder / "none.db"]),
    "no such key": (UsageError, lambda folder: ["show", "--db", folder / "a.db", "--key", folder / "none"]),
    "another key": (UsageError, lambda folder: ["show", "--db", folder / "a.db", "--key", folder / "other.key"]),
    "set up already": (UsageError, lambda folder: ["init", "--db", folder / "a.db"]),
    "no such party": (UsageError, lambda folder: ["grant", "somebody", 5, "--db", folder / "a.db"]),
    "a party that anybody is": (UsageError, lambda folder: ["grant", "01" + 62 * "0", 5, "--db", folder / "a.db"]),
    "a referee that anybody is": (
        UsageError,
        lambda folder: ["init", "--db", folder / "b.db", "--referee", "01" + 62 * "0"],
    ),
    "an empty purse": (UsageError, lambda folder: ["grant", party_of("prover"), 5, "--out", "--db", folder / "a.db"]),
    "rules that are none": (MalformedError, lambda folder: ["init", "--db", folder / "b.db", "--rules", folder / "no"]),
    "rules said twice": (
        UsageError,
        lambda folder: [
            *("init", "--db", folder / "b.db", "--rules", write_rules(folder / "r.json")),
            *("--referee", party_of("referee")),
        ],
    ),
    "an address": (UsageError, lambda folder: ["init", "--db", folder / "b.db", "--treasury", "0x" + "ab" * 20]),
    "no such referee": (
        UsageError,
        lambda folder: ["serve", "--db", folder / "a.db", "--referee", folder / "other.key"],
    ),
}


@pytest.mark.parametrize(("kind", "arrange"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_clear_line(tmp_path: Path, kind: type[TallyError], arrange: Arrange) -> None:
    tally("init", "--db", tmp_path / "a.db")
    key_of("prover").write(tmp_path / "other.key")
    (tmp_path / "no").write_text("[]")
    with pytest.raises(kind) as caught:
        tally(*arrange(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A coordinator with a beacon of its own, and money for everybody."""
    rules = usual_rules(party_of, beacon=party_of("coordinator"), clock=3000, withdrawal_delay=1)
    with closing(LocalCoordinator.create(tmp_path / "coordinator.db", rules, key_of("coordinator"))) as place:
        for name in ("prover", "challenger", "bystander"):
            place.grant(party_of(name), PURSE)
    key_of("coordinator").write(tmp_path / "coordinator.db.key")
    key_of("referee").write(tmp_path / "referee.key")
    return tmp_path / "coordinator.db"


@contextmanager
def serving(db: Path, *options: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`tally coordinator serve` in a process of its own, and the address that it prints."""
    words = ["coordinator", "serve", "--db", str(db), "--grace", "0", "--poll", "0.1", *map(str, options)]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@dataclass(frozen=True)
class Distant:
    """A world whose clock nobody can move."""

    place: RemoteCoordinator | LocalCoordinator

    def party(self, name: str) -> str:
        return party_of(name)

    def connect(self, name: str) -> Any:
        return self.place.connect(key_of(name))

    def board(self, name: str) -> Any:
        return self.place.board(key_of(name))

    def advance(self, seconds: int) -> None:
        raise NotImplementedError


def test_a_server_killed_between_all_moves_goes_on(db: Path) -> None:
    steps: list[Callable[[Play], object]] = [
        lambda play: play.post(),
        lambda play: play.contest(),
        lambda play: play.world.connect("challenger").submit(Concede(actor=party_of("challenger"), dispute=0)),
    ]
    for step in steps:
        with serving(db) as (process, url), closing(RemoteCoordinator(url)) as place:
            step(Play(Distant(place)))
            process.send_signal(signal.SIGKILL)
            process.wait()
    with closing(LocalCoordinator.open(db)) as place:
        assert place.state.disputes[0].fault is Fault.CHALLENGER
        assert [entry.move.kind for entry in place.entries()] == ["post", "contest", "concede"]


def test_the_keeper_of_a_server_makes_due_moves_and_the_server_ends_cleanly(db: Path) -> None:
    with closing(LocalCoordinator.open(db, clock=lambda: 1_000)) as place:
        Play(Distant(place)).post()
    with serving(db, "--referee", db.with_name("referee.key")) as (process, url):
        with closing(RemoteCoordinator(url)) as remote:
            assert remote.rules.beacon == remote.charter.key
            deadline = time.monotonic() + 120
            while remote.chain().state.claims[0].status is Status.OPEN and time.monotonic() < deadline:
                time.sleep(0.1)
            assert remote.chain().state.claims[0].status is Status.FINAL
            assert remote.entries()[-1].move.actor == party_of("coordinator")
        process.send_signal(signal.SIGINT)
        _, lines = process.communicate(timeout=120)
        assert (process.returncode, lines) == (0, "stopped\n")
