"""What one program does with many disputes, with outages, with refusals, and with moves whose fate is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tallystick.core.errors import ProofError, RuleError, UnavailableError
from tallystick.disputes.coordinators.coordinator import MoveEntry, NotSentError
from tallystick.disputes.game.moves import Contest, Move, Withdraw, value_of
from tallystick.disputes.game.protocols import Doubt, OpenedLeaves
from tallystick.disputes.game.state import Dispute, PostedClaim, Status
from tallystick.disputes.parties import programs
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.player import PartyTask, Polling
from tallystick.verdicts.verdict import Fault
from tests.disputes.parties.in_memory_game import CHALLENGER, CHEAT, PROVER, Accuser, InMemoryGame, party
from tests.support.in_memory import InMemoryConnection, InMemoryCoordinator
from tests.support.toy_game import Cheat, Counting, CountingDoubter, CountingTrace

HONEST, CHEATING = Counting(), Counting(cheat=CHEAT)


@dataclass
class Listed:
    """A role with a list of tasks, each done once."""

    seconds: dict[str, int | None]
    done: list[str] = field(default_factory=list)

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        for name, left in self.seconds.items():
            if name not in self.done:
                yield PartyTask(name, left, lambda name=name: self.done.append(name))  # type: ignore[misc,func-returns-value]


def test_the_most_urgent_comes_first_and_what_has_no_clock_last(tmp_path: Path) -> None:
    role = Listed({"idle": None, "soon": 60, "later": 6000, "now": 1})
    InMemoryGame(tmp_path).player(PROVER, lambda *_: (role,)).look()
    assert role.done == ["now", "soon", "later", "idle"]


def test_the_most_urgent_dispute_is_answered_first(tmp_path: Path) -> None:
    """A replay takes its time, and the other clock runs."""
    game = InMemoryGame(tmp_path)
    prover, first, second = game.prover(HONEST), *(game.challenger(Accuser(), name=party(n)) for n in (900, 901))
    prover.look()
    first.step()
    prover.step()
    game.coordinator.clock.advance(game.coordinator.clock() + 1000)
    second.step()
    game.coordinator.clock.advance(game.coordinator.clock() + 4000)
    first.step()
    turns = [dispute.turn for dispute in game.coordinator.state.disputes]
    prover.step()
    assert [dispute.turn for dispute in game.coordinator.state.disputes] == [turns[0], turns[1] + 1]


def test_a_hundred_disputes_at_once_are_all_answered(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    prover, challenger = game.prover(Counting(4, 3)), game.challenger(Accuser())
    prover.look()
    price = game.coordinator.rules.challenger_bond + game.coordinator.rules.deposit
    for _ in range(100):
        game.coordinator.accept(Contest(actor=CHALLENGER, value=price, claim=0, low=0, high=4))
    game.play(prover, challenger, game.referee())
    assert Counter(dispute.fault for dispute in game.coordinator.state.disputes) == {Fault.CHALLENGER: 100}
    assert game.coordinator.state.claims[0].status is Status.FINAL
    assert game.paid(PROVER) == 100 * game.coordinator.rules.challenger_bond


class Stubborn(CountingTrace):
    """Cannot answer the disputes of one challenger."""

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        if dispute.challenger == party(1000):
            raise ZeroDivisionError("a mistake")
        return super().partition(dispute, places)


def test_one_bad_dispute_blocks_no_other(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    accusers = [game.challenger(Accuser(), name=party(1000 + number)) for number in range(3)]
    prover = game.prover(HONEST, trace=Stubborn(HONEST))
    prover.look()
    for each in accusers:
        each.look()
    prover.look()
    waiting = [dispute.turn for dispute in game.coordinator.state.disputes]
    assert waiting == [0, 1, 1]
    assert any("ZeroDivisionError" in line for line in game.said)


@dataclass(frozen=True)
class Poor(InMemoryConnection):
    """A party whose purse is empty."""

    def submit(self, move: Move) -> None:
        if value_of(move):
            raise RuleError("funds", "the purse holds 0")
        super().submit(move)


def test_without_money_nothing_is_contested_and_everything_else_goes_on(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    doubter = Counted()
    game.prover(CHEATING).look()
    challenger = game.challenger(doubter, wrap=lambda connection: Poor(connection.coordinator, connection.party))
    for _ in range(20):
        challenger.look()
        game.coordinator.clock.advance(game.coordinator.clock() + 10)
    assert not game.coordinator.state.disputes
    assert "the purse holds 0" in game.said[-1]
    assert doubter.doubts == 1  # what was found is remembered, and only the contest is tried again
    challenger.coordinator = challenger.follower.coordinator = game.coordinator.connect(CHALLENGER)
    game.coordinator.clock.advance(game.coordinator.clock() + 600)
    challenger.look()
    assert len(game.coordinator.state.disputes) == 1


class Counted(CountingDoubter):
    """Counts how often it recomputes a claim."""

    def __init__(self) -> None:
        object.__setattr__(self, "doubts", 0)

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        object.__setattr__(self, "doubts", self.doubts + 1)
        return super().doubt(claim, statement)

    doubts: int


def test_a_claim_is_recomputed_once_also_by_a_program_that_starts_again(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    game.prover(HONEST).look()
    doubter = Counted()
    for _ in range(3):
        challenger = game.challenger(doubter)
        challenger.look()
        challenger.workspace.close()
    assert doubter.doubts == 1


@dataclass
class Uncertain:
    """A coordinator whose answers get lost: a submitted move arrives now, later, or never, and nobody is told."""

    inner: InMemoryConnection
    arrives: str
    unanswered: int = 1
    pending: list[Move] = field(default_factory=list)
    tried: int = 0

    @property
    def party(self) -> str:
        return self.inner.party

    @property
    def rules(self) -> object:
        return self.inner.rules

    def now(self) -> int:
        return self.inner.now()

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        return self.inner.entries(start)

    def submit(self, move: Move) -> None:
        self.tried += 1
        if self.tried != self.unanswered:
            return self.inner.submit(move)
        if self.arrives == "now":
            self.inner.submit(move)
        elif self.arrives == "later":
            self.pending.append(move)
        raise UnavailableError("no answer")

    def arrive(self) -> None:
        """What was under way has arrived."""
        for move in self.pending:
            self.inner.submit(move)
        self.pending = []


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("arrives", ["now", "later", "never"])
def test_a_contest_of_unknown_fate_is_not_made_twice(tmp_path: Path, arrives: str, restarted: bool) -> None:
    game = InMemoryGame(tmp_path)
    game.prover(CHEATING).look()
    line = Uncertain(game.coordinator.connect(CHALLENGER), arrives)
    challenger = game.challenger(wrap=lambda _: line)  # type: ignore[arg-type,return-value]
    challenger.look()
    if restarted:
        challenger.workspace.close()
        challenger = game.challenger(wrap=lambda _: line)  # type: ignore[arg-type,return-value]
    game.coordinator.clock.advance(game.coordinator.clock() + 60)
    challenger.look()
    line.arrive()
    for _ in range(4):
        game.coordinator.clock.advance(game.coordinator.clock() + 100)
        challenger.look()
    assert sum(isinstance(entry.move, Contest) for entry in game.coordinator.entries) == 1


@pytest.mark.parametrize("arrives", ["now", "later", "never"])
def test_a_move_of_unknown_fate_is_made_again_as_it_was(tmp_path: Path, arrives: str) -> None:
    """A later arrival is harmless: its turn is over, and the coordinator refuses it."""
    game = InMemoryGame(tmp_path)
    line = Uncertain(game.coordinator.connect(PROVER), arrives, unanswered=2)
    prover = game.prover(CHEATING, wrap=lambda _: line)  # type: ignore[arg-type,return-value]
    prover.look()
    game.challenger().look()
    prover.look()
    game.coordinator.clock.advance(game.coordinator.clock() + 5)
    prover.look()
    if line.pending:
        with pytest.raises(RuleError) as refusal:
            line.arrive()
        assert refusal.value.code in {"phase", "turn"}
    assert [entry.move.kind for entry in game.coordinator.entries] == ["post", "contest", "partition"]


def test_a_claim_is_posted_once(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    for _ in range(3):
        prover = game.prover(HONEST)
        prover.look()
        prover.workspace.close()
    assert len(game.coordinator.state.claims) == 1
    other = game.prover(replace(HONEST, start=7))
    other.look()
    assert len(game.coordinator.state.claims) == 2


def test_two_programs_of_one_party_do_not_work_in_one_folder(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    first = game.prover(HONEST)
    with pytest.raises(UnavailableError, match="another program of this party"):
        game.prover(HONEST)
    first.workspace.close()
    game.prover(HONEST).look()


@dataclass
class Down:
    """A coordinator that is away for some looks, and whose last moves may be undone meanwhile."""

    inner: InMemoryConnection
    away: int = 0

    def __getattr__(self, name: str) -> object:
        if name == "entries" and self.away:
            self.away -= 1
            raise UnavailableError("nobody answers")
        return getattr(self.inner, name)


@dataclass
class Unsent:
    """A coordinator to which the first moves are not sent, because something is lacking here."""

    inner: InMemoryConnection
    lacking: int = 1

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def submit(self, move: Move) -> None:
        if self.lacking:
            self.lacking -= 1
            raise NotSentError("insufficient funds")
        self.inner.submit(move)


def test_a_move_that_was_not_sent_is_not_waited_for(tmp_path: Path) -> None:
    """Though it is one whose unknown fate would be waited out for long."""
    game = InMemoryGame(tmp_path)
    said: list[str] = []
    prover = game.prover(HONEST, wrap=Unsent)  # type: ignore[arg-type]
    prover.say, prover.patience = said.append, 1800
    prover.look()
    assert [each.split(": ")[1] for each in said] == ["insufficient funds"]
    game.coordinator.clock.advance(game.coordinator.clock() + 2)
    prover.look()
    assert len(game.coordinator.state.claims) == 1


def test_an_outage_is_waited_out_with_growing_pauses(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    slept: list[float] = []
    said: list[str] = []
    prover = game.prover(HONEST, wrap=lambda seat: Down(seat, away=4))  # type: ignore[arg-type,return-value]
    prover.say = said.append
    prover.run(lambda view: bool(view.state.claims), Polling(poll=1.0, sleep=slept.append))
    assert slept == [2.0, 4.0, 8.0, 16.0]
    assert said == [
        "waiting for the coordinator, and trying again until it answers: nobody answers",
        "the coordinator answers again",
    ]
    assert len(game.coordinator.state.claims) == 1


def test_what_was_undone_during_an_outage_is_forgotten(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    down = Down(game.coordinator.connect(PROVER))
    prover = game.prover(HONEST, wrap=lambda _: down)  # type: ignore[arg-type,return-value]
    prover.look()
    fork = InMemoryCoordinator(game.coordinator.rules, game.coordinator.clock)
    down.inner, down.away = fork.connect(PROVER), 1
    with pytest.raises(UnavailableError):
        prover.step()
    game.coordinator.clock.advance(game.coordinator.clock() + 300)
    prover.look()
    assert [entry.move.kind for entry in fork.entries] == ["post"]


def test_a_coordinator_that_breaks_its_own_rules_is_left(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    prover = game.prover(HONEST)
    game.coordinator.entries.append(MoveEntry(0, game.coordinator.clock(), Withdraw(actor=party(9))))
    with pytest.raises(ProofError, match="against its rules"):
        prover.step()
    game.coordinator.entries[0] = MoveEntry(3, game.coordinator.clock(), Withdraw(actor=party(9)))
    with pytest.raises(ProofError, match="gave move 3 where 0 comes next"):
        prover.step()


def test_while_nobody_disputes_a_prover_only_looks(tmp_path: Path) -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError("nobody asked for the trace")

    game = InMemoryGame(tmp_path)
    prover = game.prover(HONEST, trace=Untouchable())  # type: ignore[arg-type]
    prover.look()
    before = sorted(tmp_path.rglob("*"))
    for _ in range(50):
        game.coordinator.clock.advance(game.coordinator.clock() + 100)
        assert prover.step() is False
    assert sorted(tmp_path.rglob("*")) == before


def test_one_party_may_have_several_claims(tmp_path: Path) -> None:
    """Each is answered from its own run; disputes over a claim that is not known here are left to another program."""
    runs = [Counting(3, 3), Counting(3, 3, cheat=Cheat(1, 1))]

    def trace_of(claim: PostedClaim) -> CountingTrace | None:
        return next((CountingTrace(run) for run in runs if run.root() == claim.root), None)

    game = InMemoryGame(tmp_path)
    for run in (*runs, Counting(2, 2)):
        prover = game.prover(run)
        prover.look()
        prover.workspace.close()
    prover = game.player(PROVER, lambda cache, work: programs.prover(cache, work, trace_of))
    game.play(prover, game.challenger(Accuser()), game.referee())
    assert [claim.status for claim in game.coordinator.state.claims] == [Status.FINAL, Status.SLASHED, Status.SLASHED]
    assert game.coordinator.state.disputes[0].fault is Fault.CHALLENGER


def test_a_folder_of_another_game_misleads_nobody(tmp_path: Path) -> None:
    """The same dispute numbers at another coordinator: what was noted for the first is no answer to the second."""
    for counting, fault in ((CHEATING, Fault.PROVER), (replace(CHEATING, start=5), Fault.PROVER)):
        game = InMemoryGame(tmp_path)
        game.play(game.prover(counting), game.challenger(), game.referee())
        game.leave()
        assert game.coordinator.state.disputes[0].fault is fault
