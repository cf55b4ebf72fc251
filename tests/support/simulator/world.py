"""One simulated world: people, a place for moves and a clock, all driven by one generator, and everything checked."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.game import voting
from tallystick.disputes.game.context import game_time
from tallystick.disputes.game.moves import Move, Retire, Withdraw
from tallystick.disputes.game.state import Dispute, Phase, State, Status, broken
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.accounts import Accounts
from tests.support.simulator.actors import Actor
from tests.support.simulator.background_load import BackgroundLoad
from tests.support.simulator.chain import Chain
from tests.support.simulator.event_queue import EventQueue
from tests.support.simulator.invariant_checker import BrokenError, Place, accepted_again
from tests.support.simulator.laws.every_move import broken_by
from tests.support.simulator.local_fake import RestartingCoordinator
from tests.support.simulator.population import Population
from tests.support.simulator.setting import draw_delays, draw_rules
from tests.support.simulator.trees import Run, Truth

START: Final = 1_000_000
EVENTS_MAX: Final = 40_000
VOTING: Final = (Phase.COMMITTING, Phase.REVEALING)


class World:
    """A world from one seed; `run` lets it happen to its end.

    Raises `BrokenError` where something does not hold.
    """

    def __init__(self, seed: str) -> None:
        self.chance = chance = Random(seed)
        self.counts: Counter[str] = Counter()
        self.delays = draw_delays(chance)
        self.rules = draw_rules(chance, self.delays)
        self.truth = Truth()
        self.runs: dict[str, Run] = {}
        self.queue = EventQueue(START)
        self.place: Place = self._place()
        self.view = self.place.head
        self.accounts = Accounts(self.rules, self.truth)
        self.digest = hashlib.sha256()
        self._stalled: list[Move] = []
        self.is_closing = False
        self.people = Population(self)
        self.honest = self.people.honest
        self._background = BackgroundLoad(self, self.people)

    # ---- what parties can do
    @property
    def time(self) -> int:
        """Game time, as of what is final."""
        return game_time(self.view, self.queue.now)

    def after(self, seconds: int, action: Callable[[], None]) -> None:
        """Let something happen later."""
        self.queue.after(seconds, action)

    def send(self, move: Move, delay: int = 0) -> None:
        """Make a move in so many seconds."""
        if delay > 0:
            self.queue.after(delay, lambda: self.place.submit(move))
        else:
            self.place.submit(move)

    def learn(self, run: Run) -> None:
        """Know what is right and wrong in a run."""
        self.runs[run.top().root] = run
        self.truth.learn((run.top(), *(run.below(step) for step in range(min(2, run.steps)))))
        self.truth.learn(run.severed(step) for step in range(2))
        if run.fault is not None:
            self.truth.learn((run.below(run.fault[0]),))

    def pause_left(self) -> int:
        """Seconds until a pause ends by itself; 0 where there is none."""
        since = self.view.pausing.since
        return 0 if since is None else max(0, since + self.rules.pause_max - self.queue.now)

    # ---- running
    def run(self) -> None:
        """Let everything happen, then look back."""
        while self.queue.step():
            if self.queue.events > EVENTS_MAX:
                raise BrokenError("the world does not come to an end")
        self._has_ended()

    def _has_ended(self) -> None:
        state = self.place.head
        if state is not self.view and state != self.view:
            raise BrokenError("something never became final")
        self._all_hold(state)
        accepted_again(self.rules, self.place.entries(), state)
        for number, claim in enumerate(state.claims):
            if claim.status is Status.OPEN:
                raise BrokenError(f"claim {number} never ended")
        for number, dispute in enumerate(state.disputes):
            if dispute.phase is not Phase.SETTLED:
                raise BrokenError(f"dispute {number} never ended: {dispute.phase}")
        self.accounts.close(state, self.honest)
        self.counts.update(f"ended {each.fault}" for each in state.disputes)

    # ---- observing every move
    def accepted(self, before: State, move: Move, now: int, after: State) -> None:
        """Check the laws, and every sixteenth time all invariants."""
        self.counts[f"accepted {move.kind}"] += 1
        self.digest.update(f"{now} {move.kind} {move.actor[-3:]}\n".encode())
        for line in broken_by(before, move, now, after):
            raise BrokenError(f"{line} (move {move})")
        if not self.chance.getrandbits(4):
            self._all_hold(after)
        if move.kind == "resume":
            self.queue.after(0, self._flush)

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
            raise BrokenError(f"{move.kind} was refused in a pause since {since}, at {now}")
        self._stalled.append(move)
        if len(self._stalled) == 1:
            self.queue.after(since + self.rules.pause_max - now, self._flush)

    def final(self, entry: MoveEntry, before: State, after: State) -> None:
        """Money and endings count once they are final."""
        self.accounts.book(entry, before, after, self.honest, self.delays)

    def happened(self, what: str) -> None:
        """Count it; parties are killed now and then, too, and start again without memory."""
        self.counts[what] += 1
        self.digest.update(f"{self.queue.now} {what}\n".encode())

    def _all_hold(self, state: State) -> None:
        for line in broken(state):
            raise BrokenError(line)

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
        if before.members is not after.members:
            self._tell_of_bounds(before, after)
        if not self.is_closing and after.claims and self._is_over(after):
            self.is_closing = True
            self._leave()

    def _tell_of_claims(self, before: State, after: State) -> None:
        for number in range(len(before.claims), len(after.claims)):
            accomplice, _ = self.people.planter.planted.get(after.claims[number].seal, ("", Fault.NOBODY))
            for each in self.people.challengers:
                if each.name == accomplice or each.is_keen():
                    each.consider(number)
        for number, claim in enumerate(after.claims):
            if number >= len(before.claims) or before.claims[number] is not claim:
                self.people.keeper.close(number)

    def _tell_of_disputes(self, before: State, after: State, is_resumed: bool) -> None:
        for number, dispute in enumerate(after.disputes):
            old = before.disputes[number] if number < len(before.disputes) else None
            is_moot = before.claims[dispute.claim].status is not after.claims[dispute.claim].status if old else False
            if old is dispute and not is_moot and not is_resumed:
                continue
            if dispute.phase is Phase.SETTLED:
                if old is not None and old.phase is not Phase.SETTLED:
                    self.people.planter.settled(number)
                continue
            for actor in self._concerned(old, dispute, is_moot or is_resumed):
                self._wake(actor, number)

    def _concerned(self, old: Dispute | None, dispute: Dispute, is_for_all: bool) -> list[Actor]:
        is_same = old is not None and not is_for_all and old.phase is dispute.phase and dispute.phase in VOTING
        if is_same:
            done = dispute.phase is Phase.REVEALING and voting.has_disclosed(dispute.rounds[-1])
            return [self.people.keeper] if done else []
        names = [self.view.claims[dispute.claim].prover, dispute.challenger]
        names += dispute.rounds[-1].drawn if dispute.phase in VOTING else ()
        found = [self.people.actors[name] for name in names if name in self.people.actors]
        found += [self.people.referee] if dispute.phase is Phase.RULING and self.rules.referee else []
        found += [self.people.beacon] if dispute.phase is Phase.DRAWING and self.rules.beacon else []
        return [*found, self.people.keeper]

    def _wake(self, actor: Actor, number: int) -> None:
        if self.chance.random() < 0.01:
            actor.forget()
            self.counts["party restarted"] += 1
        patience = self.delays.patience
        self.after(self.chance.randint(0, patience) if patience else 0, lambda: actor.wake(number))

    def _tell_of_money(self, before: State, after: State) -> None:
        for name, credits in after.owed.items():
            if before.owed.get(name) is not credits and self.chance.random() < 0.2:
                wait = credits[0].ripe - self.queue.now
                self.send(Withdraw(actor=name), max(0, wait - (self.chance.random() < 0.2)))
                if self.chance.random() < 0.2:
                    self.send(Withdraw(actor=name), max(0, wait))

    def _tell_of_bounds(self, before: State, after: State) -> None:
        """Members that are not honest try to leave as soon as nothing seems to hold them."""
        for name, member in after.members.items():
            held = before.members.get(name)
            is_counted = held is not None and held.bound_until != member.bound_until
            if is_counted and name not in self.honest and self.chance.random() < 0.6:
                self.send(Retire(actor=name), member.bound_until - self.time)

    # ---- the end
    def _is_over(self, state: State) -> bool:
        is_open = any(claim.status is Status.OPEN for claim in state.claims) or self.people.claims > len(state.claims)
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
            self.send(Withdraw(actor=name), max(0, credits[min(len(credits), 32) - 1].ripe - self.queue.now))
        is_idle = not busy and self._is_over(state) and self.place.head == state
        if not (is_idle and was_idle):
            self.after(1 + self.delays.answer + self.rules.withdrawal_delay // 2, lambda: self._leave(is_idle))

    def _place(self) -> Place:
        chance, kills = self.chance, self.chance.choice((0.0, 0.0, 0.01))
        if self.delays.is_chain:
            return Chain(self.rules, self.queue, chance, self, self._published, self.delays)
        return RestartingCoordinator(self.rules, self.queue, chance, self, self._published, kills)
