"""D-11: a coordinator killed at any point of any move of a dispute goes on, and the dispute ends as it would have."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.coordinators.local.signed import read_signed_move
from tallystick.disputes.game.moves import read_move
from tallystick.disputes.game.state import Phase, State
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.conformance import Play
from tests.disputes.coordinators.local.keys import key_of, set_up
from tests.disputes.coordinators.local.mortal import Workshop, reopened, workshop
from tests.disputes.coordinators.local.script import rules, take_next

KINDS = (
    *("enlist", "post", "contest", "partition", "choose", "descend", "reveal"),
    *("convene", "draw", "vote", "disclose", "tally", "settle"),
)
MOVES = 25
"""How many the script makes: of prover and challenger, the referee, whoever brings the nonce, and three members."""


@dataclass
class Undisturbed:
    """The script that nobody disturbs: its signed moves, the state after each, and the database before each."""

    states: list[State] = field(default_factory=list)
    moves: list[bytes] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)

    def last_of(self, kind: str) -> int:
        return max(number for number, move in enumerate(self.kinds) if move == kind)

    @property
    def kinds(self) -> list[str]:
        return [read_move(read_signed_move(move).move.encode()).kind for move in self.moves]

    def before(self, number: int) -> State:
        return self.states[number - 1] if number else State(rules())

    def order(self, folder: Path, number: int, point: int) -> dict[str, Any]:
        move = self.moves[number].decode()
        return {"do": "take", "folder": str(folder), "number": number, "move": move, "point": point}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder, found = tmp_path_factory.mktemp("undisturbed"), Undisturbed()
    world = set_up(folder / "coordinator.db", rules())
    Play(world)  # puts at the board what the script's moves refer to
    while True:
        world.place.close()
        found.copies.append(Path(shutil.copytree(folder, folder.with_name(f"before{len(found.states)}"))))
        world = reopened(folder)
        accepted = world.place.chain().count
        if not take_next(world):
            world.place.close()
            return found
        found.states.append(world.place.state)
        found.moves.append(world.place.accepted(accepted, 1, 1)[0].signed.to_bytes())


@pytest.fixture(scope="module")
def mortals() -> Iterator[Workshop]:
    with workshop() as found:
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_a_coordinator_killed_at_any_point_of_a_move_goes_on(
    kind: str, undisturbed: Undisturbed, mortals: Workshop, tmp_path: Path
) -> None:
    number, point, left = undisturbed.last_of(kind), 0, []
    while True:
        folder = Path(shutil.copytree(undisturbed.copies[number], tmp_path / str(point)))
        is_killed = mortals.killed(**undisturbed.order(folder, number, point))
        with closing(reopened(folder, number).place) as place:
            left.append(place.state)
            place.take(undisturbed.moves[number])
            assert place.state == undisturbed.states[number]
            assert place.chain().count == number + 1
        if not is_killed:
            break
        point += 1
    assert point >= 6
    assert [left[0], left[-2], left[-1]] == [undisturbed.before(number), *[undisturbed.states[number]] * 2]
    assert all(state in (undisturbed.before(number), undisturbed.states[number]) for state in left)


def test_a_coordinator_killed_in_every_move_ends_the_dispute_as_it_would_have(
    undisturbed: Undisturbed, mortals: Workshop, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(undisturbed.copies[0], tmp_path / "killed"))
    for number, move in enumerate(undisturbed.moves):
        assert mortals.killed(**undisturbed.order(folder, number, point=number % 6))
        with closing(reopened(folder, number).place) as place:
            place.take(move)
    with closing(reopened(folder).place) as place:
        assert place.state == undisturbed.states[-1]
        assert (place.state.disputes[0].phase, place.state.disputes[0].fault) == (Phase.SETTLED, Fault.PROVER)
        assert (len(undisturbed.moves), set(undisturbed.kinds)) == (MOVES, set(KINDS))


def test_setting_up_killed_at_any_point_can_be_done_again(mortals: Workshop, tmp_path: Path) -> None:
    kept = []
    for point in itertools.count():
        path = tmp_path / f"{point}.db"
        is_killed = mortals.killed(do="set up", path=str(path), point=point)
        kept.append(is_set_up(path))
        if not is_killed:
            break
        if not kept[-1]:
            set_up(path, rules(), purse=0).place.close()
            assert is_set_up(path)
    assert len(kept) > 5
    assert kept == sorted(kept)
    assert kept[-2:] == [True, True]


def is_set_up(path: Path) -> bool:
    try:
        with closing(LocalCoordinator.open(path, key_of("coordinator"))) as place:
            return place.rules == rules()
    except (UnavailableError, MalformedError) as error:
        return not re.search("no database of a coordinator|no such database", str(error))
