"""A program that is killed at any point and started again plays the same game, and never moves twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from tallystick.disputes.parties.player import Player
from tallystick.verdicts.verdict import Fault
from tests.disputes.parties.in_memory_game import CHALLENGER, MEMBERS, PROVER, REFEREE, Accuser, InMemoryGame, rules
from tests.disputes.parties.kills import Mortal, Reaper
from tests.support.in_memory import InMemoryCoordinator
from tests.support.toy_game import Cheat, Counting

COUNTING = {"honest": Counting(2, 2), "cheating": Counting(2, 2, cheat=Cheat(1, 0))}


class Ended(NamedTuple):
    """How a game ended: who was at fault, what each earned, and how often each move was made."""

    fault: Fault | None
    earned: dict[str, int]
    moves: Counter[str]


# "late": moves become final and visible only 40 seconds after they were accepted, as on a chain
def play(folder: Path, reaper: Reaper, who: str, case: str, patch: pytest.MonkeyPatch) -> Ended:
    """One game in which the program of `who` is mortal."""
    side, ruling, *more = case.split()
    named = (0, 7) if "named" in more else None
    referee = REFEREE if ruling == "referee" else None
    agreed = rules(referee=referee, appeals=0, committee=1, members=MEMBERS[:1])
    game = InMemoryGame(folder, InMemoryCoordinator(agreed, finality=40 if "late" in more else 0))
    starts: dict[str, Callable[..., Player]] = {
        "prover": partial(game.prover, COUNTING[side]),
        "challenger": partial(game.challenger, Accuser(), naming=lambda _: named),
        ruling: partial(game.referee, waits=bool(named)) if referee else partial(game.member, MEMBERS[0]),
    }
    mortal = Mortal(reaper, starts.pop(who), patch)
    others = [start() for start in starts.values()]
    game.play(mortal, *others, game.beacon())
    game.leave()
    (dispute,) = game.coordinator.state.disputes
    moves = Counter(entry.move.kind for entry in game.coordinator.entries)
    return Ended(dispute.fault, {name: game.paid(name) for name in (PROVER, CHALLENGER, MEMBERS[0])}, moves)


CASES = (
    *("honest referee", "cheating referee", "honest member", "cheating member", "cheating referee late"),
    "cheating referee late named",
)
GAMES = [(case, who) for case in CASES for who in ("prover", "challenger", "ruling")]
QUICK = [game for game in GAMES if game[0] in CASES[1:3]] + [(case, "challenger") for case in CASES[-2:]]
OTHERS = [game for game in GAMES if game not in QUICK]


@pytest.mark.parametrize(("case", "who"), QUICK, ids=map("-".join, QUICK))
def test_killed_anywhere_it_goes_on(tmp_path: Path, case: str, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_everywhere(tmp_path, case, who, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "who"), OTHERS, ids=map("-".join, OTHERS))
def test_killed_anywhere_in_the_other_games(
    tmp_path: Path, case: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_everywhere(tmp_path, case, who, monkeypatch)


def kill_everywhere(tmp_path: Path, case: str, who: str, patch: pytest.MonkeyPatch) -> None:
    """The same game, killed at every point that the program passes in it."""
    side, ruling, *_ = case.split()
    who = ruling if who == "ruling" else who
    undisturbed = play(tmp_path / "whole", Reaper(-1), who, case, patch)
    assert undisturbed.fault is (Fault.CHALLENGER if side == "honest" else Fault.PROVER)
    assert undisturbed.moves["pinpoint"] == ("named" in case)
    for at in count():
        reaper = Reaper(at)
        assert play(tmp_path / f"{at}", reaper, who, case, patch) == undisturbed, f"killed at point {at}"
        if reaper.passed <= at:
            break
    assert at > 20
