"""What all simulated parties have in common: they look at what is final, decide, and never decide a turn twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, Rules, State
from tests.support.simulator.setting import Delays
from tests.support.simulator.trees import Run, Truth

Turn = tuple[int, Phase, int, int]


class WorldView(Protocol):
    """The world as a party sees it."""

    chance: Random
    rules: Rules
    delays: Delays
    truth: Truth

    @property
    def runs(self) -> Mapping[str, Run]:
        """The runs of which anybody could know the truth, by the roots of their trees."""
        ...

    def learn(self, run: Run) -> None:
        """Know what is right and wrong in a run."""
        ...

    @property
    def view(self) -> State:
        """What can no longer be undone."""
        ...

    @property
    def time(self) -> int:
        """Game time."""
        ...

    def after(self, seconds: int, action: Callable[[], None]) -> None:
        """Let something happen later."""
        ...

    def send(self, move: Move, delay: int = 0) -> None:
        """Make a move in so many seconds."""
        ...

    def pause_left(self) -> int:
        """Seconds until a pause ends by itself; 0 where there is none."""
        ...


class Actor:
    """A party: `wake` is called when a dispute that concerns it has changed, and when it asked for that."""

    def __init__(self, world: WorldView, name: str, is_honest: bool = True) -> None:
        self.world, self.name, self.is_honest = world, name, is_honest
        self._decided: set[Turn] = set()
        self._alarms: dict[int, int] = {}

    def wake(self, number: int) -> None:
        """Look at a dispute, and move if it is this party's turn."""
        dispute = self.world.view.disputes[number]
        turn = (number, dispute.phase, dispute.turn, len(dispute.rounds))
        if dispute.phase is Phase.SETTLED or turn in self._decided:
            return
        left = self.world.pause_left()
        if left:
            self.world.after(left, lambda: self.wake(number))
        elif self.decide(number, dispute, self.world.view.claims[dispute.claim]):
            self._decided.add(turn)

    def decide(self, number: int, dispute: Dispute, claim: PostedClaim) -> bool:
        """Send what there is to send; whether this turn is dealt with."""
        raise NotImplementedError

    def forget(self) -> None:
        """Start again, without memory."""
        self._decided.clear()

    def again(self, number: int, seconds: int) -> bool:
        """Look at a dispute again later; nothing is dealt with yet. The last alarm that was set for it counts."""
        alarm = self._alarms[number] = self._alarms.get(number, 0) + 1

        def ring() -> None:
            if self._alarms[number] == alarm:
                self.wake(number)

        self.world.after(max(seconds, 1), ring)
        return False
