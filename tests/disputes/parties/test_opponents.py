"""Whatever the other side puts at the board, or keeps back: nobody crashes, and nobody gains by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tallystick.core.digests import Digest
from tallystick.core.errors import UnavailableError
from tallystick.disputes.game.moves import Cut, Partition
from tallystick.disputes.game.protocols import Descent, DisputeView, Files, Ground, OpenedLeaves
from tallystick.disputes.game.state import Dispute, Status
from tallystick.verdicts.verdict import Fault
from tests.disputes.parties.in_memory_game import (
    CHALLENGER,
    CHEAT,
    MEMBERS,
    PROVER,
    REFEREE,
    Accuser,
    InMemoryGame,
    rules,
)
from tests.support.in_memory import InMemoryCoordinator, MemoryBoard
from tests.support.toy_game import Counting, CountingDoubter, CountingTrace

HONEST, CHEATING = Counting(), Counting(cheat=CHEAT)
Spoil = Callable[[Files], Files]


@dataclass(frozen=True)
class Spoiling(CountingTrace):
    """Spoils the files of its partitions and of its descent."""

    spoil: Spoil = dict

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        opened = super().partition(dispute, places)
        return replace(opened, files=self.spoil(opened.files))

    def descend(self, dispute: Dispute) -> Descent:
        descent = super().descend(dispute)
        return replace(descent, files=self.spoil(descent.files))


def garbled(files: Files) -> Files:
    return dict.fromkeys(files, b"\xff\x00 no record")


def swapped(files: Files) -> Files:
    return dict(zip(files, reversed(list(files.values())), strict=True))


def deep(files: Files) -> Files:
    return dict.fromkeys(files, b"[" * 100000)


def huge_numbers(files: Files) -> Files:
    return dict.fromkeys(files, b'{"after":9007199254740991,"before":-1,"step":1}')


def none(files: Files) -> Files:
    return {}


def renamed(files: Files) -> Files:
    return {f"x{name}": data for name, data in files.items()}


SPOILERS = [garbled, swapped, deep, huge_numbers, none, renamed]


@pytest.mark.parametrize("ruling", ["referee", "committee"])
@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_a_prover_that_opens_garbage_loses(tmp_path: Path, spoil: Spoil, ruling: str) -> None:
    game = InMemoryGame(
        tmp_path, InMemoryCoordinator(rules(referee=REFEREE if ruling == "referee" else None, appeals=0))
    )
    prover = game.prover(CHEATING, trace=Spoiling(CHEATING, spoil=spoil))
    judges = [game.referee()] if ruling == "referee" else [game.beacon(), *game.members(of=5)]
    game.play(prover, game.challenger(), *judges)
    (dispute,) = game.coordinator.state.disputes
    assert (dispute.fault, dispute.ground) == (Fault.PROVER, "structure")
    assert game.coordinator.state.claims[0].status is Status.SLASHED


def test_a_prover_that_opens_what_it_should_is_not_protested_against(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    game.play(game.prover(CHEATING, trace=Spoiling(CHEATING)), game.challenger(), game.referee())
    assert (game.coordinator.state.disputes[0].fault, game.coordinator.state.disputes[0].ground) == (
        Fault.PROVER,
        "leaf",
    )


def test_a_protest_without_ground_loses(tmp_path: Path) -> None:
    class Protester(Accuser):
        def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> Ground:
            return "structure"

    game = InMemoryGame(tmp_path)
    game.play(game.prover(HONEST), game.challenger(Protester()), game.referee())
    assert (game.coordinator.state.disputes[0].fault, game.coordinator.state.disputes[0].ground) == (
        Fault.CHALLENGER,
        "structure",
    )


class Silent:
    """A prover that has lost its run."""

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        raise UnavailableError("the run is gone")

    descend = reveal = partition


def test_a_silent_prover_loses_when_its_clock_ends(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    game.play(game.prover(CHEATING, trace=Silent()), game.challenger(), game.referee())  # type: ignore[arg-type]
    assert [entry.move.kind for entry in game.coordinator.entries][-2:] == ["timeout", "withdraw"]
    assert game.coordinator.state.disputes[0].fault is Fault.PROVER


def test_a_silent_challenger_loses_when_its_clock_ends(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    challenger = game.challenger()
    prover, referee = game.prover(CHEATING), game.referee()
    prover.look()
    challenger.step()
    challenger.roles = ()
    game.play(prover, challenger, referee)
    assert game.coordinator.state.disputes[0].fault is Fault.CHALLENGER
    assert game.coordinator.state.claims[0].status is Status.FINAL


@dataclass
class Gaps(MemoryBoard):
    """A board that has lost some blobs, or is away."""

    lost: set[Digest] = field(default_factory=set)
    is_away: bool = False

    def get(self, name: Digest) -> bytes:
        if self.is_away or name in self.lost:
            raise UnavailableError(f"{name}: cannot be had")
        return super().get(name)


@dataclass
class OddStatement(Gaps):
    """A board where the prover put something else than a manifest for its statement."""

    def put(self, data: bytes) -> Digest:
        is_first = not any(b'"kind":"manifest"' in kept for kept in self.blobs.values())
        return super().put(data + b"x" if is_first and b'"kind":"manifest"' in data else data)


@pytest.mark.parametrize("board", [Gaps(), OddStatement()], ids=["a statement", "no statement"])
def test_members_convict_a_prover_that_withholds_a_turn_whatever_its_statement_is(tmp_path: Path, board: Gaps) -> None:
    game = InMemoryGame(tmp_path, InMemoryCoordinator(rules(referee=None, appeals=0)), board)
    prover, challenger = game.prover(CHEATING), game.challenger(Accuser())
    prover.look()
    challenger.step()
    prover.look()
    assert isinstance(game.coordinator.entries[-1].move, Partition)
    board.lost.add(game.coordinator.entries[-1].move.data)
    game.play(prover, challenger, game.beacon(), *game.members(of=5))
    (dispute,) = game.coordinator.state.disputes
    assert (dispute.fault, dispute.rounds[0].votes) == (Fault.PROVER, (Fault.PROVER,) * 3)


def test_a_challenger_protests_before_its_clock_ends_where_data_cannot_be_had(tmp_path: Path) -> None:
    """And says the referee: what a board that answers has not, was withheld."""
    board = Gaps()
    game = InMemoryGame(tmp_path, board=board)
    prover, challenger, referee = game.prover(CHEATING), game.challenger(), game.referee()
    prover.look()
    challenger.step()
    prover.look()
    assert isinstance(game.coordinator.entries[-1].move, Partition)
    board.lost.add(game.coordinator.entries[-1].move.data)
    asked = game.coordinator.clock()
    game.play(prover, challenger, referee)
    protest = next(entry for entry in game.coordinator.entries if entry.move.kind == "protest")
    assert asked < protest.time < asked + game.coordinator.rules.clock
    assert game.coordinator.state.disputes[0].fault is Fault.PROVER


def test_a_board_that_comes_back_in_time_changes_nothing(tmp_path: Path) -> None:
    board = Gaps()
    game = InMemoryGame(tmp_path, board=board)
    prover, challenger, referee = game.prover(CHEATING), game.challenger(), game.referee()
    prover.look()
    challenger.step()
    prover.look()
    board.is_away = True
    challenger.look()
    game.coordinator.clock.advance(game.coordinator.clock() + 600)
    challenger.look()
    board.is_away = False
    game.play(prover, challenger, referee)
    assert "protest" not in [entry.move.kind for entry in game.coordinator.entries]
    assert game.coordinator.state.disputes[0].fault is Fault.PROVER


@pytest.mark.parametrize(("is_away", "contested"), [(False, True), (True, False)], ids=["lost", "away"])
def test_a_withheld_statement_is_contested_before_the_window_ends(
    tmp_path: Path, is_away: bool, contested: bool
) -> None:
    """But nobody bets a bond on a board that does not answer at all."""
    board = Gaps()
    game = InMemoryGame(tmp_path, board=board)
    prover, challenger = game.prover(HONEST), game.challenger()
    prover.look()
    board.is_away = is_away
    board.lost.add(game.coordinator.state.claims[0].statement)
    game.play(prover, challenger, game.referee())
    assert bool(game.coordinator.state.disputes) is contested
    if contested:
        assert game.coordinator.state.disputes[0].fault is Fault.PROVER
        contest = next(entry for entry in game.coordinator.entries if entry.move.kind == "contest")
        assert contest.time > game.coordinator.entries[0].time + game.coordinator.rules.challenge_window // 2


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_a_statement_that_is_none_is_contested_and_convicted(tmp_path: Path, spoil: Spoil) -> None:
    game = InMemoryGame(tmp_path)
    prover = game.prover(HONEST)
    offer = prover.roles[0].offer  # type: ignore[attr-defined]
    prover.roles[0].offer = replace(offer, files=spoil(offer.files))  # type: ignore[attr-defined]
    game.play(prover, game.challenger(), game.referee())
    assert game.coordinator.state.disputes[0].fault is Fault.PROVER


class Crashing(CountingDoubter):
    """A doubter with a mistake of its own, that some files trigger."""

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        raise IndexError("list index out of range")


def test_a_mistake_in_the_challenger_ends_in_a_protest_and_not_in_silence(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    game.play(
        game.prover(CHEATING, trace=Spoiling(CHEATING, spoil=garbled)), game.challenger(Crashing()), game.referee()
    )
    assert game.coordinator.state.disputes[0].fault is Fault.PROVER
    assert any("a mistake of this program: IndexError" in line for line in game.said)


def test_members_vote_against_a_prover_whose_files_are_no_files(tmp_path: Path) -> None:
    """A prover that posts the digest of something else than a folder of files."""

    class NoManifest(MemoryBoard):
        def put(self, data: bytes) -> Digest:
            return super().put(b"no manifest" if b'"kind":"manifest"' in data and self.blobs else data)

    game = InMemoryGame(tmp_path, InMemoryCoordinator(rules(referee=None, appeals=0, committee=3, members=MEMBERS[:3])))
    prover = game.prover(HONEST)
    prover.look()
    prover.workspace.close()
    spoiling = game.prover(HONEST, wrap_board=lambda _: NoManifest(game.board.blobs))  # type: ignore[attr-defined]
    game.play(spoiling, game.challenger(Accuser()), game.beacon(), *game.members(of=3))
    assert game.coordinator.state.disputes[0].fault is Fault.PROVER
    assert game.coordinator.state.disputes[0].rounds[0].votes == (Fault.PROVER,) * 3


def test_leaves_with_wrong_proofs_are_refused_and_the_clock_goes_on(tmp_path: Path) -> None:
    class Unproven(CountingTrace):
        def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
            opened = super().partition(dispute, places)
            return OpenedLeaves(tuple(Cut(leaf=each.leaf, proof=()) for each in opened.cuts), opened.files)

    game = InMemoryGame(tmp_path)
    game.play(game.prover(CHEATING, trace=Unproven(CHEATING)), game.challenger(), game.referee())
    kinds = [entry.move.kind for entry in game.coordinator.entries]
    assert "partition" not in kinds
    assert "timeout" in kinds
    assert game.paid(PROVER) < 0 < game.paid(CHALLENGER)
