"""Whole games for the vectors of disputes: every kind of end, and moves that are refused on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import RuleError
from tallystick.disputes.game import moves, voting
from tallystick.disputes.game.context import game_time, mover, time_left
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Phase, Rules, State, bounds, cut_places
from tallystick.disputes.game.voting import next_seats
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.trees import NOTHING, Run


def party(number: int) -> str:
    """The name of a party."""
    return f"{number:064x}"


TREASURY, REFEREE, BEACON, PLANTER, GUARDIAN, PROVER, CHALLENGER, OTHER = map(party, range(8))
MEMBERS = tuple(party(100 + place) for place in range(9))
SALT, NONCE = "5a" * 32, "ab" * 32
P, C, N = Fault.PROVER, Fault.CHALLENGER, Fault.NOBODY
RULES = Rules(
    treasury=TREASURY,
    members=MEMBERS,
    referee=REFEREE,
    beacon=BEACON,
    planter=PLANTER,
    guardian=GUARDIAN,
    ways=4,
    committee=3,
)


def as_json(value: Any) -> Any:
    """A part of a state as JSON: absent options have no key, the rules are left out."""
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "rules"}
        return {name: as_json(each) for name, each in named.items() if each is not None}
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [as_json(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def state_digest(state: State) -> Digest:
    """The digest of a state, as spec/dispute.md defines it."""
    return digest("dispute", encode(as_json(state)))


class Game:
    """A game that writes down what was tried."""

    def __init__(self, what: str, run: Run, **changes: Any) -> None:
        self.what, self.run, self.now = what, run, 1_000
        self.rules = RULES.model_copy(update=changes)
        self.state = State(self.rules)
        self.tried: list[dict[str, Any]] = []

    def do(self, *made: Move) -> Game:
        """Try moves; refusals are written down like the rest."""
        for move in made:
            entry = {"time": self.now, "move": move.to_bytes().decode()}
            try:
                self.state = apply(self.state, move, self.now)
            except RuleError as error:
                self.tried.append({**entry, "refused": error.code})
            else:
                self.tried.append({**entry, "state": state_digest(self.state)})
        return self

    def wait(self, seconds: int) -> Game:
        """Let time pass."""
        self.now += seconds
        return self

    def case(self) -> dict[str, Any]:
        """The vector."""
        rules = self.rules.to_bytes().decode()
        return {"what": self.what, "rules": rules, "moves": self.tried, "final": as_json(self.state)}

    # ---- moves
    def begin(self, members: int = len(MEMBERS), **changes: Any) -> Game:
        """Members enlist, a claim is posted and contested."""
        self.do(*[moves.Enlist(actor=name, value=self.rules.stake) for name in MEMBERS[:members]])
        return self.do(self.post(**changes), self.contest())

    def post(self, **changes: Any) -> moves.Post:
        """A claim for the run."""
        top = self.run.top()
        said: dict[str, Any] = {
            "actor": PROVER,
            "root": top.root,
            "size": top.size,
            "levels": self.run.levels,
            "seal": "00" * 32,
        }
        said["value"] = self.rules.prover_bond
        return moves.Post(statement=NOTHING, **{**said, **changes})

    def contest(self, **changes: Any) -> moves.Contest:
        """All leaves of the first claim."""
        price = self.rules.challenger_bond + self.rules.deposit
        said = {"actor": CHALLENGER, "claim": 0, "low": 0, "high": self.run.steps, "value": price}
        return moves.Contest(**{**said, **changes})

    def answer(self, number: int = 0) -> Any:
        """The right move of the party to move."""
        dispute = self.state.disputes[number]
        who = {"actor": mover(self.state.claims[0], dispute), "dispute": number, "turn": dispute.turn}
        trees = (self.run.top(), *(self.run.below(step) for step in range(self.run.steps)))
        tree = next(each for each in trees if each.root == dispute.root)
        if dispute.phase is Phase.CHOOSE:
            ends = bounds(dispute.low, dispute.high, self.rules.ways)[1:]
            faulty = dispute.high - 1 if tree.faulty is None else tree.faulty
            return moves.Choose(**who, child=next(place for place, end in enumerate(ends) if faulty < end))
        if dispute.phase is Phase.PARTITION:
            places = cut_places(dispute.low, dispute.high, self.rules.ways)
            return moves.Partition(**who, cuts=tuple(tree.cut(place) for place in places), data=NOTHING)
        cut = tree.cut(dispute.low)
        opened = {**who, "leaf": cut.leaf, "proof": cut.proof, "data": NOTHING}
        if dispute.level > 1:
            below = self.run.below(dispute.low)
            return moves.Descend(**opened, root=below.root, size=below.size)
        return moves.Reveal(**opened)

    def until(self, phase: Phase, number: int = 0, seconds: int = 60) -> Game:
        """Right answers until `phase`."""
        while self.state.disputes[number].phase is not phase:
            self.wait(seconds).do(self.answer(number))
        return self

    def left(self, number: int = 0) -> int:
        """The seconds of the party to move."""
        return time_left(self.state.disputes[number], game_time(self.state, self.now))

    def sit(self, *votes: Fault | None) -> Game:
        """The last committee votes so; `None` stays away."""
        number = len(self.state.disputes[0].rounds) - 1
        cast = [
            (name, vote)
            for name, vote in zip(self.state.disputes[0].rounds[-1].drawn, votes, strict=True)
            if vote is not None
        ]
        for name, vote in cast:
            sealed = voting.commitment(0, number, name, vote, SALT)
            self.do(moves.Vote(actor=name, dispute=0, commitment=sealed))
        first, vote = cast[0]
        self.do(moves.Retire(actor=first), moves.Enlist(actor=first, value=self.rules.stake))
        if None in votes:
            self.wait(self.rules.vote_window)
        self.do(moves.Disclose(actor=first, dispute=0, vote=vote, salt=NONCE))
        self.do(*[moves.Disclose(actor=name, dispute=0, vote=vote, salt=SALT) for name, vote in cast])
        return self.do(tally())

    def appeal(self, actor: str) -> Game:
        """An appeal at its price, and the draw."""
        price = self.rules.appeal_bond + self.rules.vote_fee * next_seats(self.state.disputes[0])
        return self.do(moves.Appeal(actor=actor, dispute=0, value=price), draw())

    def paid(self) -> Game:
        """Everybody takes out what is owed, and tries again."""
        self.wait(self.rules.withdrawal_delay)
        for name in sorted(self.state.owed):
            self.do(moves.Withdraw(actor=name), moves.Withdraw(actor=name))
        return self


def tally() -> moves.Tally:
    """Anybody's move."""
    return moves.Tally(actor=OTHER, dispute=0)


def timeout(number: int = 0) -> moves.Timeout:
    """Anybody's move."""
    return moves.Timeout(actor=OTHER, dispute=number)


def settle() -> moves.Settle:
    """Anybody's move."""
    return moves.Settle(actor=OTHER, dispute=0)


def convene(actor: str = REFEREE) -> moves.Convene:
    """The referee's move at first."""
    return moves.Convene(actor=actor, dispute=0)


def draw() -> moves.Draw:
    """The beacon's move."""
    return moves.Draw(actor=BEACON, dispute=0, nonce=NONCE)


def pinpoint(result: int, element: int, actor: str = CHALLENGER) -> moves.Pinpoint:
    """The challenger's move."""
    return moves.Pinpoint(actor=actor, dispute=0, result=result, element=element)


def rule(fault: Fault, number: int = 0) -> moves.Rule:
    """The referee's move."""
    return moves.Rule(actor=REFEREE, dispute=number, fault=fault, reason=NOTHING)


def finalise() -> moves.Finalise:
    """Anybody's move."""
    return moves.Finalise(actor=OTHER, claim=0)


WRONG, HONEST = Run(0, 9, 7, fault=(5, 3)), Run(0, 9, 7)


def games() -> list[dict[str, Any]]:
    """All of them."""
    made: tuple[Callable[[], Iterator[Game]], ...] = (
        *(ruled, cleared, evident, named, voted),
        *(planted, silent, paused, sized),
    )
    return [game.case() for each in made for game in each()]


def ruled() -> Iterator[Game]:
    """A cheat, found."""
    game = Game("a cheat is bisected to its operator, ruled upon, and pays", WRONG)
    yield game.begin().until(Phase.RULING).do(rule(P), rule(P), finalise(), timeout()).paid()


def cleared() -> Iterator[Game]:
    """An accuser, and all it tries."""
    game = Game("an accuser tries everything against an honest prover, and pays", HONEST).begin(0)
    right = game.answer()
    other = game.run.top().cut(2)
    game.do(timeout(), settle(), tally(), convene(), draw(), rule(C), moves.Dismiss(actor=OTHER, dispute=0))
    game.do(right.model_copy(update={"actor": CHALLENGER}), right.model_copy(update={"turn": 1}))
    game.do(
        right.model_copy(update={"cuts": right.cuts[:2]}), right.model_copy(update={"cuts": (other, *right.cuts[1:])})
    )
    game.wait(game.left() - 1).do(timeout(), right, right)
    game.do(moves.Choose(actor=CHALLENGER, dispute=0, turn=1, child=4), timeout(7), game.contest(claim=1))
    game.do(game.contest(actor=PROVER), game.contest(low=9), game.contest(value=1), game.post(value=1))
    game.wait(game.left() - 1).do(game.answer()).until(Phase.LEAF)
    wrong = game.answer().model_copy(update={"leaf": other.leaf})
    game.do(wrong).until(Phase.RULING).do(convene(OTHER), rule(C)).do(finalise())
    yield game.wait(game.rules.challenge_window).do(game.contest(), finalise(), finalise()).paid()


def evident() -> Iterator[Game]:
    """Evidence."""
    run = Run(0, 9, 1, levels=1, fault=(5, 0), is_edge=True)
    for what, each in (("an edge that changes is proved by anybody", run), ("an honest edge is not", Run(0, 9, 1, 1))):
        game = Game(what, each, referee=None).begin(0).until(Phase.RULING)
        place = game.state.disputes[0].low
        proof = moves.Prove(actor=OTHER, dispute=0, evidence=each.top().evidence(place))
        other = moves.Prove(actor=OTHER, dispute=0, evidence=each.top().evidence(1))
        yield game.do(other, proof).wait(game.rules.referee_window).do(convene(OTHER)).paid()


def named() -> Iterator[Game]:
    """Elements that are named: too early, by others, again, too late; of a record, and of a protest."""
    game = Game("the challenger names an element, and another one before the draw", WRONG)
    game.begin().do(pinpoint(0, 5)).until(Phase.RULING)
    game.do(pinpoint(0, 5, PROVER), pinpoint(0, 5, REFEREE), pinpoint(1, 2**48 - 1), convene(), pinpoint(0, 5))
    game.do(draw(), pinpoint(0, 6)).sit(P, P, P).do(pinpoint(0, 6))
    price = game.rules.appeal_bond + game.rules.vote_fee * next_seats(game.state.disputes[0])
    game.do(moves.Appeal(actor=PROVER, dispute=0, value=price), pinpoint(0, 6), draw())
    yield game.sit(P, P, P, P, P, P, P).do(pinpoint(0, 5)).paid()
    game = Game("a protest is about no element", WRONG).begin(0).until(Phase.CHOOSE)
    game.do(moves.Protest(actor=CHALLENGER, dispute=0, turn=1), pinpoint(0, 5))
    yield game.do(rule(C)).paid()
    game = Game("a record that is revealed has no elements", WRONG).begin(0).until(Phase.LEAF)
    opened = game.answer()
    said = {name: getattr(opened, name) for name in ("actor", "dispute", "turn", "leaf", "proof", "data")}
    yield game.do(moves.Reveal(**said), pinpoint(0, 5), rule(P)).paid()


def voted() -> Iterator[Game]:
    """Committees."""
    game = Game("a committee is appealed against twice; one member stays away", WRONG, committee=1)
    game.begin().until(Phase.RULING).do(convene(OTHER), convene(), draw()).sit(C)
    game.do(moves.Retire(actor=game.state.disputes[0].rounds[0].drawn[0])).appeal(PROVER).appeal(CHALLENGER)
    game.sit(P, P, None).appeal(PROVER).sit(P, P, P, P, C, C, N)
    game.wait(game.rules.holding).do(*[moves.Retire(actor=name) for name in MEMBERS])
    yield game.paid()
    game = Game("a committee has no majority, and nobody appeals", WRONG)
    game.begin(5).until(Phase.RULING).do(convene(), draw()).sit(P, C, N).do(settle()).appeal(CHALLENGER)
    yield game.wait(game.rules.appeal_window).do(settle(), settle()).paid()


def planted() -> Iterator[Game]:
    """Planted answers."""
    game = Game("a planted answer costs who voted otherwise, and nobody leaves before", WRONG)
    game.begin(seal=voting.seal(PROVER, P, SALT)).until(Phase.RULING).do(convene(), draw()).sit(P, C, P)
    lazy = game.state.disputes[0].rounds[0].drawn[1]
    shown = moves.Unseal(actor=PLANTER, dispute=0, answer=P, salt=SALT)
    game.do(shown, moves.Retire(actor=lazy)).wait(game.rules.appeal_window).do(settle(), moves.Retire(actor=lazy))
    game.do(shown.model_copy(update={"answer": C}), shown.model_copy(update={"actor": OTHER}), shown, shown)
    yield game.do(moves.Retire(actor=lazy), moves.Enlist(actor=lazy, value=game.rules.stake)).paid()


def silent() -> Iterator[Game]:
    """Silence of each party, a moot dispute, a beacon that says nothing, no members."""
    for phase in (Phase.PARTITION, Phase.CHOOSE, Phase.LEAF):
        game = Game(f"silence at {phase}", WRONG).begin(0).do(game_second(OTHER)).until(phase)
        game.wait(game.left() - 1).do(timeout()).wait(1).do(game.answer(), timeout(), timeout())
        if phase is not Phase.CHOOSE:
            game.do(game.answer(1), timeout(1), moves.Dismiss(actor=OTHER, dispute=1))
        yield game.paid()
    game = Game("a beacon says nothing", WRONG).begin().until(Phase.RULING).do(convene(), timeout())
    yield game.wait(game.rules.vote_window - 1).do(timeout()).wait(1).do(timeout(), draw()).paid()
    yield Game("there is no member to draw", WRONG).begin(0).until(Phase.RULING).do(convene()).paid()
    game = Game("a party gives up", WRONG).begin(0).until(Phase.CHOOSE)
    game.wait(game.rules.challenge_window).do(finalise())
    yield game.do(moves.Concede(actor=OTHER, dispute=0), moves.Concede(actor=CHALLENGER, dispute=0)).paid()


def game_second(actor: str) -> moves.Contest:
    """A second dispute over the first claim."""
    price = RULES.challenger_bond + RULES.deposit
    return moves.Contest(actor=actor, claim=0, low=0, high=9, value=price)


def paused() -> Iterator[Game]:
    """Pauses."""
    pause, resume = moves.Pause(actor=GUARDIAN), moves.Resume(actor=GUARDIAN)
    game = Game("clocks stand still in a pause, and money does not", HONEST).begin(0)
    game.do(game_second(OTHER), moves.Concede(actor=OTHER, dispute=1), resume, pause, pause, game.answer())
    game.wait(game.rules.withdrawal_delay).do(moves.Withdraw(actor=PROVER), moves.Resume(actor=OTHER), resume)
    proof = moves.Prove(actor=OTHER, dispute=0, evidence=HONEST.below(5).evidence(1))
    game.do(pause).wait(game.left() - 1).do(game.answer()).wait(60)
    game.do(moves.Protest(actor=CHALLENGER, dispute=0, turn=1), proof).wait(game.rules.pause_rest).do(pause)
    yield game.wait(game.rules.pause_max + 60).do(timeout(), pause, convene(OTHER)).paid()


def sized() -> Iterator[Game]:
    """Trees of several sizes, cut in several ways."""
    for size in (1, 2, 3, 4, 7, 8, 9, 16, 17, 33):
        for ways in (2, 3, 32):
            run = Run(1, size, 1, levels=1, fault=(size * 2 // 3, 0))
            game = Game(f"{size} leaves in {ways} ways", run, ways=ways).begin(0).until(Phase.RULING, seconds=1)
            yield game.do(rule(P))
