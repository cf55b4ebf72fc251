"""The programs of prover, challenger and referee play at a server; the bond moves, also if the server is restarted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tallystick.core.http.server import served
from tallystick.disputes.coordinators.local.client import RemoteCoordinator
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.coordinators.local.server import create_app
from tallystick.disputes.game.state import Status
from tallystick.disputes.parties import programs
from tallystick.disputes.parties.game_view import BoardCache
from tallystick.disputes.parties.player import PartyRole, Player, Workspace
from tallystick.disputes.parties.programs import play_out
from tallystick.disputes.parties.prover import ClaimOffer
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.conformance import usual_rules
from tests.disputes.coordinators.local.keys import PURSE, LocalWorld, key_of, party_of, set_up
from tests.support.toy_game import Cheat, Counting, CountingDoubter, CountingJudge, CountingTrace

CHEATING = Counting(cheat=Cheat(step=7, operator=4))


@dataclass(frozen=True)
class InMemoryGame:
    """Three programs, each at a client of its own."""

    folder: Path
    url: str
    held: ExitStack

    def player(self, name: str, roles: Callable[[BoardCache, Workspace], Sequence[PartyRole]]) -> Player:
        place = self.held.enter_context(closing(RemoteCoordinator(self.url)))
        workspace = self.held.enter_context(Workspace(self.folder / name))
        cache = BoardCache(place.board(key_of(name)), workspace.folder / "data")
        return Player(place.connect(key_of(name)), workspace, roles(cache, workspace))

    def all(self) -> list[Player]:
        offer = ClaimOffer(CHEATING.root(), len(CHEATING.leaves(2)), CHEATING.statement(), 2)
        trace = CountingTrace(CHEATING, 2)
        return [
            self.player("prover", lambda cache, work: programs.prover(cache, work, lambda _: trace, offer)),
            self.player(
                "challenger", lambda cache, work: programs.challenger(cache, work, lambda _: CountingDoubter())
            ),
            self.player("referee", lambda cache, _: programs.referee(cache, CountingJudge())),
        ]


@contextmanager
def seated(folder: Path, world: LocalWorld) -> Iterator[list[Player]]:
    with ExitStack() as held, served(create_app(world.place)) as url, held:
        yield InMemoryGame(folder, url, held).all()


def test_a_cheating_prover_is_found_and_its_bond_moves(tmp_path: Path) -> None:
    world = set_up(tmp_path / "coordinator.db", usual_rules(party_of))
    with closing(world.place), seated(tmp_path, world) as players:
        play_out(players, world.clock.advance)
        assert_slashed(world)


def test_programs_and_server_restarted_after_every_move_come_to_the_same_end(tmp_path: Path) -> None:
    world, moves = set_up(tmp_path / "coordinator.db", usual_rules(party_of)), -1
    while moves < (moves := world.place.chain().count):
        with seated(tmp_path, world) as players:
            play_out(players, world.clock.advance, partial(has_moved, world.place, moves))
        world.place.close()
        world = LocalWorld(LocalCoordinator.open(world_path(tmp_path), key_of("coordinator"), world.clock), world.clock)
    with closing(world.place):
        assert_slashed(world)


def has_moved(place: LocalCoordinator, since: int) -> bool:
    return place.chain().count > since


def world_path(folder: Path) -> Path:
    return folder / "coordinator.db"


def assert_slashed(world: LocalWorld) -> None:
    rules, state = world.place.rules, world.place.state
    reward = rules.prover_bond * rules.reward // 1000
    assert (state.claims[0].status, state.disputes[0].fault) == (Status.SLASHED, Fault.PROVER)
    assert world.place.purse(party_of("prover")) == PURSE - rules.prover_bond
    assert world.place.purse(party_of("challenger")) == PURSE + reward
