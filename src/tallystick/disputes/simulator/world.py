"""One simulated world: people, a place for moves and a clock, all driven by one generator, and everything checked."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from tallystick.disputes import committee
from tallystick.disputes.coordinators.coordinator import Entry
from tallystick.disputes.fault import Fault
from tallystick.disputes.invariants import broken
from tallystick.disputes.moves import Enlist, Move, Retire, Withdraw
from tallystick.disputes.pausing import game_time
from tallystick.disputes.simulator.accounts import Accounts
from tallystick.disputes.simulator.actors import Actor
from tallystick.disputes.simulator.agenda import Agenda
from tallystick.disputes.simulator.bisectors import Challenger, Prover
from tallystick.disputes.simulator.laws import broken_by
from tallystick.disputes.simulator.officials import Beacon, Guardian, Keeper, Member, Planter, Referee
from tallystick.disputes.simulator.places import Broken, Chain, Desk, Place, accepted_again
from tallystick.disputes.simulator.setting import (
    BEACON,
    CHALLENGERS,
    GUARDIAN,
    KEEPER,
    PLANTER,
    PROVERS,
    REFEREE,
    VANDALS,
    draw_delays,
    draw_rules,
    party,
)
from tallystick.disputes.simulator.trees import SIZES, Run, Truth
from tallystick.disputes.simulator.vandals import Vandal, seconds_to_due
from tallystick.disputes.state import Dispute, Phase, State, Status

START: Final = 1_000_000
EVENTS_MAX: Final = 40_000
VOTING: Final = (Phase.COMMITTING, Phase.REVEALING)
MEMBER_WAYS: Final = ("honest",) * 8 + ("lying", "lying", "lazy", "absent", "mute", "copying", "hasty", "tardy")
CHALLENGER_WAYS: Final = ("honest", "honest", "honest", "wrong", "careless")


class World:
    """A world from one seed; `run` lets it happen to its end, and raises `Broken` where something does not hold."""

    def __init__(self, seed: str) -> None:
        self.chance = chance = Random(seed)
        self.counts: Counter[str] = Counter()
        self.delays = draw_delays(chance)
        self.rules = draw_rules(chance, self.delays)
        self.truth, self.runs = Truth(), dict[str, Run]()
        self.agenda = Agenda(START)
        self.place: Place = self._place()
        self.view = self.place.head
        self.accounts = Accounts(self.rules, self.truth)
        self.digest = hashlib.sha256()
        self._stalled: list[Move] = []
        self._is_closing = False
        self._people()

    # ---- what parties can do
    @property
    def time(self) -> int:
        """Game time, as of what is final."""
        return game_time(self.view, self.agenda.now)

    def after(self, seconds: int, action: Callable[[], None]) -> None:
        """Let something happen later."""
        self.agenda.after(seconds, action)

    def send(self, move: Move, delay: int = 0) -> None:
        """Make a move in so many seconds."""
        if delay > 0:
            self.agenda.after(delay, lambda: self.place.submit(move))
        else:
            self.place.submit(move)

    def pause_left(self) -> int:
        """Seconds until a pause ends by itself; 0 where there is none."""
        since = self.view.pausing.since
        return 0 if since is None else max(0, since + self.rules.pause_max - self.agenda.now)

    # ---- running
    def run(self) -> None:
        """Let everything happen, then look back."""
        while self.agenda.step():
            if self.agenda.events > EVENTS_MAX:
                raise Broken("the world does not come to an end")
        self._has_ended()

    def _has_ended(self) -> None:
        state = self.place.head
        if state is not self.view and state != self.view:
            raise Broken("something never became final")
        self._all_hold(state)
        accepted_again(self.rules, self.place.entries(), state)
        for number, claim in enumerate(state.claims):
            if claim.status is Status.OPEN:
                raise Broken(f"claim {number} never ended")
        for number, dispute in enumerate(state.disputes):
            if dispute.phase is not Phase.SETTLED:
                raise Broken(f"dispute {number} never ended: {dispute.phase}")
        self.accounts.close(state, self.honest)
        self.counts.update(f"ended {each.fault}" for each in state.disputes)

    # ---- a witness of every move
    def accepted(self, before: State, move: Move, now: int, after: State) -> None:
        """Check the laws, and every sixteenth time all invariants."""
        self.counts[f"accepted {move.kind}"] += 1
        self.digest.update(f"{now} {move.kind} {move.actor[-3:]}\n".encode())
        for line in broken_by(before, move, now, after):
            raise Broken(f"{line} (move {move})")
        if not self.chance.getrandbits(4):
            self._all_hold(after)
        if move.kind == "resume":
            self.agenda.after(0, self._flush)

    def refused(self, move: Move, now: int, code: str) -> None:
        """Count; what was refused because of a pause is sent again when it is over."""
        self.counts[f"refused {code}"] += 1
        self.digest.update(f"{now} {move.kind} {move.actor[-3:]} {code}\n".encode())
        if code == "paused":
            self._wait_for_the_end_of_the_pause(move, now)
        else:
            self.accounts.refused(self.place.head, move, code, self.honest)

    def _wait_for_the_end_of_the_pause(self, move: Move, now: int) -> None:
        since = self.place.head.pausing.since
        if since is None or now >= since + self.rules.pause_max or move.kind == "withdraw":
            raise Broken(f"{move.kind} was refused in a pause since {since}, at {now}")
        self._stalled.append(move)
        if len(self._stalled) == 1:
            self.agenda.after(since + self.rules.pause_max - now, self._flush)

    def final(self, entry: Entry, before: State, after: State) -> None:
        """Money and endings count once they are final."""
        self.accounts.book(entry, before, after, self.honest, self.delays)

    def happened(self, what: str) -> None:
        """Count it; parties are killed now and then, too, and start again without memory."""
        self.counts[what] += 1
        self.digest.update(f"{self.agenda.now} {what}\n".encode())

    def _all_hold(self, state: State) -> None:
        for line in broken(state):
            raise Broken(line)

    def _flush(self) -> None:
        stalled, self._stalled = self._stalled, []
        for move in stalled:
            self.place.submit(move)

    # ---- who hears of what
    def _published(self, before: State, after: State) -> None:
        """Tell everybody whom a change concerns."""
        self.view = after
        if before.claims is not after.claims:
            self._tell_of_claims(before, after)
        is_resumed = before.pausing is not after.pausing
        if before.disputes is not after.disputes or before.claims is not after.claims or is_resumed:
            self._tell_of_disputes(before, after, is_resumed)
        if before.owed is not after.owed:
            self._tell_of_money(before, after)
        if not self._is_closing and after.claims and self._is_over(after):
            self._is_closing = True
            self._leave()

    def _tell_of_claims(self, before: State, after: State) -> None:
        for number in range(len(before.claims), len(after.claims)):
            accomplice, _ = self.planter.planted.get(after.claims[number].seal, ("", Fault.NOBODY))
            for each in self.challengers:
                if each.name == accomplice or each.is_keen():
                    each.consider(number)
        for number, claim in enumerate(after.claims):
            if number >= len(before.claims) or before.claims[number] is not claim:
                self.keeper.close(number)

    def _tell_of_disputes(self, before: State, after: State, is_resumed: bool) -> None:
        for number, dispute in enumerate(after.disputes):
            old = before.disputes[number] if number < len(before.disputes) else None
            is_moot = before.claims[dispute.claim].status is not after.claims[dispute.claim].status if old else False
            if old is dispute and not is_moot and not is_resumed:
                continue
            if dispute.phase is Phase.SETTLED:
                if old is not None and old.phase is not Phase.SETTLED:
                    self.planter.settled(number)
                continue
            for actor in self._concerned(old, dispute, is_moot or is_resumed):
                self._wake(actor, number)

    def _concerned(self, old: Dispute | None, dispute: Dispute, is_for_all: bool) -> list[Actor]:
        is_same = old is not None and not is_for_all and old.phase is dispute.phase and dispute.phase in VOTING
        if is_same:
            done = dispute.phase is Phase.REVEALING and committee.has_disclosed(dispute.rounds[-1])
            return [self.keeper] if done else []
        names = [self.view.claims[dispute.claim].prover, dispute.challenger]
        names += dispute.rounds[-1].drawn if dispute.phase in VOTING else ()
        found = [self.actors[name] for name in names if name in self.actors]
        found += [self.referee] if dispute.phase is Phase.RULING and self.rules.referee else []
        found += [self.beacon] if dispute.phase is Phase.DRAWING and self.rules.beacon else []
        return [*found, self.keeper]

    def _wake(self, actor: Actor, number: int) -> None:
        if self.chance.random() < 0.01:
            actor.forget()
            self.counts["party restarted"] += 1
        patience = self.delays.patience
        self.after(self.chance.randint(0, patience) if patience else 0, lambda: actor.wake(number))

    def _tell_of_money(self, before: State, after: State) -> None:
        for name, credits in after.owed.items():
            if before.owed.get(name) is not credits and self.chance.random() < 0.2:
                wait = credits[0].ripe - self.agenda.now
                self.send(Withdraw(actor=name), max(0, wait - (self.chance.random() < 0.2)))
                if self.chance.random() < 0.2:
                    self.send(Withdraw(actor=name), max(0, wait))

    # ---- the end
    def _is_over(self, state: State) -> bool:
        is_open = any(claim.status is Status.OPEN for claim in state.claims) or self._to_post > len(state.claims)
        return not is_open and all(each.phase is Phase.SETTLED for each in state.disputes)

    def _leave(self, was_idle: bool = False) -> None:
        """Members retire, and everybody takes out what is owed, until nothing was left twice in a row."""
        pause = self.pause_left()
        if pause:
            self.after(pause, self._leave)
            return
        state, busy = self.view, False
        for name, member in state.members.items():
            if member.stake:
                busy = True
                self.send(Retire(actor=name), member.bound_until - self.time)
        for name, credits in state.owed.items():
            busy = True
            self.send(Withdraw(actor=name), max(0, credits[min(len(credits), 32) - 1].ripe - self.agenda.now))
        is_idle = not busy and self._is_over(state) and self.place.head == state
        if not (is_idle and was_idle):
            self.after(1 + self.delays.answer + self.rules.withdrawal_delay // 2, lambda: self._leave(is_idle))

    # ---- who there is
    def _place(self) -> Place:
        chance, kills = self.chance, self.chance.choice((0.0, 0.0, 0.01))
        if self.delays.is_chain:
            return Chain(self.rules, self.agenda, chance, self, self._published, self.delays)
        return Desk(self.rules, self.agenda, chance, self, self._published, kills)

    def _people(self) -> None:
        chance = self.chance
        self.keeper = Keeper(self, party(KEEPER))
        self.referee = Referee(self, party(REFEREE))
        self.referee.way = chance.choice(("honest", "honest", "honest", "unsure", "absent", "lying"))
        self.referee.is_honest = self.referee.way != "lying"
        self.beacon = Beacon(self, party(BEACON), is_honest=chance.random() < 0.8)
        self.planter = Planter(self, party(PLANTER))
        self.guardian = Guardian(self, party(GUARDIAN), is_honest=False)
        self.members = [self._member(name) for name in self.rules.members]
        self.provers, self.challengers = list[Prover](), list[Challenger]()
        is_crowd = chance.random() < 0.02
        self._to_post = 1 if is_crowd else chance.choice((1, 1, 2, 3, 4))
        for place in range(self._to_post):
            self._add_claim(place)
        for place in range(100 if is_crowd else chance.choice((0, 1, 2, 3, 4))):
            way = "wrong" if is_crowd else chance.choice(CHALLENGER_WAYS)
            challenger = Challenger(self, party(CHALLENGERS[0] + len(self.challengers)), way)
            challenger.tries = 1.0 if is_crowd else challenger.tries
            self.challengers.append(challenger)
        everybody: list[Actor] = [*self.members, *self.provers, *self.challengers]
        self.actors = {each.name: each for each in everybody}
        self.honest = frozenset(each.name for each in everybody if each.is_honest)
        self._start()

    def _member(self, name: str) -> Member:
        way = self.chance.choice(MEMBER_WAYS)
        member = Member(self, name, is_honest=way == "honest")
        member.way = way
        return member

    def _add_claim(self, place: int) -> None:
        chance = self.chance
        run = self._run()
        is_planted = self.rules.planter is not None and chance.random() < 0.3
        plain = is_planted or chance.random() < 0.8
        way = "plain" if plain else chance.choice(("hollow", "severed", "shallow", "deep"))
        prover = Prover(self, party(PROVERS[0] + place), run, way)
        self.provers.append(prover)
        seal = f"{chance.getrandbits(256):064x}"
        if is_planted:
            seal = self._plant(prover, run)
        self.send(prover.claim(seal), chance.randint(1, 3 * self.delays.answer))

    def _plant(self, prover: Prover, run: Run) -> str:
        answer = Fault.CHALLENGER if run.fault is None else Fault.PROVER
        seal = committee.seal(prover.name, answer, self.planter.salt)
        way = "wrong" if run.fault is None else "honest"
        accomplice = Challenger(self, party(CHALLENGERS[0] + len(self.challengers)), way)
        accomplice.tries = 0.0
        self.challengers.append(accomplice)
        self.planter.planted[seal] = (accomplice.name, answer)
        return seal

    def _run(self) -> Run:
        chance = self.chance
        steps, width, levels = chance.choice(SIZES), chance.choice(SIZES), chance.choice((1, 2, 2))
        fault = None
        if chance.random() < 0.55:
            fault = (_place_in(chance, steps), _place_in(chance, width) if levels == 2 else 0)
        run = Run(chance.randrange(2), steps, width, levels, fault, is_edge=chance.random() < 0.4)
        self.runs[run.top().root] = run
        self.truth.learn((run.top(), *(run.below(step) for step in range(min(2, steps)))))
        if fault is not None:
            self.truth.learn((run.below(fault[0]),))
        self.truth.learn(run.severed(step) for step in range(2))
        return run

    def _start(self) -> None:
        chance = self.chance
        for name in self.rules.members:
            if chance.random() < 0.93:
                self.send(Enlist(actor=name, value=self.rules.stake), chance.randint(0, 2))
        if self.rules.guardian and chance.random() < 0.7:
            self.after(chance.randint(1, 20 * self.delays.answer), lambda: self.guardian.roam(chance.randint(0, 3)))
        rogues = [name for name, each in self.actors.items() if not each.is_honest]
        self._vandal = Vandal(chance, self.truth, [party(each) for each in VANDALS] + rogues)
        self._vandalise(chance.choice((0, 20, 60, 120)))
        self._rogues_retire([each for each in self.members if not each.is_honest])

    def _vandalise(self, left: int) -> None:
        if not left or self._is_closing:
            return
        state = self.place.head
        if state.disputes or self.chance.random() < 0.1:
            self.place.submit(self._vandal.move(state))
        open_ones = [each for each in state.disputes if each.phase is not Phase.SETTLED]
        wait = self.chance.randint(0, self.delays.answer)
        if open_ones and self.chance.random() < 0.5:
            due = seconds_to_due(state, self.chance.choice(open_ones), game_time(state, self.agenda.now))
            wait = max(0, due + self.chance.choice((-1, 0, 0, 1)))
        self.after(wait, lambda: self._vandalise(left - 1))

    def _rogues_retire(self, rogues: list[Member], left: int = 8) -> None:
        """Members that have voted wrongly try to get away with their stake, and those that lost it come back."""
        if self._is_closing:
            return
        for each in rogues:
            held = self.view.members.get(each.name)
            if held is not None and self.chance.random() < 0.5:
                is_in = held.stake > 0
                move = Retire(actor=each.name) if is_in else Enlist(actor=each.name, value=self.rules.stake)
                self.send(move, held.bound_until - self.time if is_in else 0)
        if left and rogues:
            wait = self.rules.vote_window + self.rules.appeal_window
            self.after(wait, lambda: self._rogues_retire(rogues, left - 1))


def _place_in(chance: Random, size: int) -> int:
    """The first, the second, a middle or the last place."""
    return chance.choice((0, min(1, size - 1), size // 2, size - 1))
