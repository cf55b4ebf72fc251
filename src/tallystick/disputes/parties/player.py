"""A party's program: it reads the game, does its most urgent task, and repeats. It can be killed at any point."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tallystick.disputes.coordinators.coordinator import Coordinator, NotSentError
from tallystick.disputes.game.moves import Move
from tallystick.disputes.parties.calendar import next_instant
from tallystick.disputes.parties.game_view import GameFollower, GameView
from tallystick.disputes.parties.task import FAILURES, MISTAKES, AnswerPending, PartyRole, PartyTask
from tallystick.disputes.parties.workspace import Sent, Workspace
from tallystick.errors import RuleError, UnavailableError

PATIENCE: Final = 120
"""Seconds after which a move that is not among the accepted ones counts as lost."""
NOT_MADE: Final = -(1 << 40)
"""The time of a move that was computed but not made yet."""
BACKOFF_S_MAX: Final = 300


def quiet(line: str) -> None:
    """Drop the line: a `say` without output."""


@dataclass(frozen=True)
class Polling:
    """The wait between two readings of the game: `poll` in seconds, and the function that sleeps."""

    poll: float = 2.0
    sleep: Callable[[float], None] = time.sleep


@dataclass
class Backoff:
    """A task that failed: how often, and when it is tried again."""

    failures: int
    until: int


@dataclass
class Player:
    """One party at one coordinator, in one or more roles.

    It can be killed at any point, because the coordinator's moves and the workspace determine what it does next.
    """

    coordinator: Coordinator
    workspace: Workspace
    roles: Sequence[PartyRole]
    say: Callable[[str], None] = quiet
    patience: int = PATIENCE
    follower: GameFollower = field(init=False)
    view: GameView | None = None
    backoffs: dict[str, Backoff] = field(default_factory=dict)
    is_waiting: bool = False
    """Whether another process was computing an answer for this party when the game was last read."""

    def __post_init__(self) -> None:
        self.follower = GameFollower(self.coordinator)

    def step(self) -> bool:
        """Do the most urgent task that succeeds; returns whether there was one.

        Raises:
            UnavailableError: the coordinator does not answer.
            ProofError: its moves do not follow its rules.
        """
        self.view = self.follower.look()
        tasks = [task for role in self.roles for task in role.tasks(self.view)]
        tasks.sort(key=lambda task: (task.seconds is None, task.seconds or 0))  # tasks without a clock come last
        self.backoffs = {task.key: self.backoffs[task.key] for task in tasks if task.key in self.backoffs}
        self.is_waiting = any(task.is_pending() for task in tasks)
        return any(self._does(task, self.view) for task in tasks if self._is_awake(task, self.view))

    def look(self, polling: Polling | None = None) -> None:
        """Do all tasks that can be done now, waiting for answers of other processes; raises as `step` does."""
        polling = polling or Polling()
        while (is_moving := self.step()) or self.is_waiting:
            if not is_moving:
                polling.sleep(polling.poll)

    def wakes(self) -> int | None:
        """The next second at which there may be something to do without a move of another party; `None` for never."""
        if self.view is None:
            return None
        backoffs = [rest.until for rest in self.backoffs.values() if rest.until > self.view.now]
        return min(filter(None, [next_instant(self.view.state, self.view.now), *backoffs]), default=None)

    def run(
        self,
        until: Callable[[GameView], bool],
        polling: Polling | None = None,
        after: Callable[[GameView], None] | None = None,
    ) -> GameView:
        """Play until nothing is left to do and `until` holds; `after` is called with every view.

        If the coordinator does not answer, it says so once, and tries again until it does.
        """
        polling, outages = polling or Polling(), 0
        while True:
            try:
                is_moving = self.step()
            except UnavailableError as error:
                if not outages:
                    self.say(f"waiting for the coordinator, and trying again until it answers: {error}")
                outages += 1
                polling.sleep(min(polling.poll * 2 ** min(outages, 30), BACKOFF_S_MAX))
                continue
            assert self.view is not None  # set by `step`
            if outages:
                self.say("the coordinator answers again")
            outages = 0
            if after is not None:
                after(self.view)
            if not is_moving and until(self.view):
                return self.view
            if not is_moving:
                polling.sleep(polling.poll)

    def _is_awake(self, task: PartyTask, view: GameView) -> bool:
        rest = self.backoffs.get(task.key)
        return (rest is None or view.now >= rest.until) and not task.is_pending()

    def _does(self, task: PartyTask, view: GameView) -> bool:
        """Whether the task was done; a failure delays this task, but no other."""
        try:
            self._make(task, view)
        except AnswerPending:
            return True
        except MISTAKES as error:
            self.say(f"{task.key}: a mistake of this program: {type(error).__name__}: {error}")
        except FAILURES as error:
            self.say(f"{task.key}: {error}")
        else:
            return True
        self._rest(task, view.now)
        return False

    def _make(self, task: PartyTask, view: GameView) -> None:
        """Compute the move, read the game again, and make the move if the rules still allow it."""
        sent = self._written_down(task, view) if task.kept else None
        if task.single and sent is not None and (arrives := sent.time + self.patience) > view.now:
            raise UnavailableError(f"waiting until {arrives} whether the {sent.move.kind} arrived")
        move = sent.move if sent else task.answer()
        if move is None:
            self._rest(task, view.now)
            return
        if task.kept and sent is None:
            self.workspace.send(task.key, move, NOT_MADE)
        self.view = view = self.follower.look()
        if not view.allows(move):
            raise UnavailableError(f"the rules no longer allow this {move.kind}")
        if task.kept:
            self.workspace.send(task.key, move, view.now)
        self._submit(task, move, view.now)

    def _written_down(self, task: PartyTask, view: GameView) -> Sent | None:
        """The move that was computed and stored before; dropped if the rules do not allow it any more."""
        sent = self.workspace.sent(task.key)
        if sent is not None and not view.allows(sent.move):
            self.workspace.forget(task.key)
            return None
        return sent

    def _submit(self, task: PartyTask, move: Move, now: int) -> None:
        """Make a move. A refused single move is forgotten; after an outage the accepted moves show if it arrived."""
        try:
            self.coordinator.submit(move)
        except NotSentError:
            if task.kept:
                self.workspace.send(task.key, move, NOT_MADE)
            raise
        except RuleError:
            if task.single:
                self.workspace.forget(task.key)
            raise
        self.backoffs[task.key] = Backoff(0, now + self.patience)

    def _rest(self, task: PartyTask, now: int) -> None:
        """Wait before the next try: twice as long each time, and at most an eighth of the time that is left."""
        failures = self.backoffs[task.key].failures + 1 if task.key in self.backoffs else 0
        longest = BACKOFF_S_MAX if task.seconds is None else min(BACKOFF_S_MAX, max(1, task.seconds // 8))
        self.backoffs[task.key] = Backoff(failures, now + min(1 << min(failures, 30), longest))
