"""A party's program: its tasks and due moves, its folder, and the loop that can be killed at any point."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self

from tallystick.core.canonical_json import Json, decode, encode
from tallystick.core.errors import MalformedError, RuleError, TallyError, UnavailableError
from tallystick.core.files import read_document, write_atomically
from tallystick.disputes.coordinators.coordinator import Coordinator, NotSentError
from tallystick.disputes.game.context import mover, withdrawable
from tallystick.disputes.game.game import MoveOption
from tallystick.disputes.game.moves import (
    Convene,
    Dismiss,
    Draw,
    Finalise,
    Move,
    Settle,
    Tally,
    Timeout,
    Withdraw,
    read_move,
)
from tallystick.disputes.parties.game_view import GameFollower, GameView, next_instant

# A task of a party: a move to compute, and the time that is left for it.

MISTAKES: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(MemoryError, RuntimeError, TypeError, ValueError),
)
"""Errors that a defect of this program may raise over unforeseen files; they may cost one dispute, never the others."""
FAILURES: Final = (TallyError, OSError, *MISTAKES)


class AnswerPending(Exception):  # noqa: N818 - nothing went wrong
    """Raised if another process has begun to compute the answer."""


def never() -> bool:
    """Never pending: the answer is computed in this process."""
    return False


@dataclass(frozen=True)
class PartyTask:
    """A task with a key that is the same after a restart.

    `seconds` are left for it, `None` if no clock runs. `answer` computes the move, `None` for no move. A `kept` task is
    answered once: its move is stored before it is made, and made again unchanged after a crash. The move of a `single`
    task has no turn number, so the rules would accept it twice: it is not repeated before it is clear that the first
    one did not arrive. While a task `is_pending`, another process computes its answer, and `answer` is not called; the
    call that starts that process raises `AnswerPending`.
    """

    key: str
    seconds: int | None
    answer: Callable[[], Move | None]
    kept: bool = False
    single: bool = False
    is_pending: Callable[[], bool] = never


class PartyRole(Protocol):
    """The tasks of a party in one function, such as answering or appealing."""

    def tasks(self, view: GameView) -> Iterable[PartyTask]:
        """The open tasks; their answers are not computed yet."""
        ...


def is_nearly_over(seconds: int | None, clock: int) -> bool:
    """Whether at most a quarter of `clock` is left, so that a party no longer waits and tries again."""
    return seconds is not None and seconds <= max(1, clock // 4)


# The moves that anybody may make once they are due, as the rules say.

DUE: Final[dict[str, Callable[..., Move]]] = {
    "timeout": Timeout,
    "convene": Convene,
    "tally": Tally,
    "settle": Settle,
    "dismiss": Dismiss,
}


@dataclass
class DueMoves:
    """Makes due moves in this party's claims and disputes, or in those of everybody; withdraws what it is owed.

    It draws a nonce only if the rules name this party, or nobody, as the beacon.
    """

    everybody: bool = False
    withdraws: bool = True
    finalises: bool = True
    nonce: Callable[[], str] = lambda: secrets.token_hex(32)

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The moves that are due now."""
        for option in view.options:
            if self.everybody or view.is_in(option.dispute):
                move = self._due(view, option)
                if move is not None and view.allows(move):
                    yield self._task(view.name_of(option.dispute), move)
        if self.finalises:
            yield from self._closings(view)
        if self.withdraws and withdrawable(view.state, view.party, view.now):
            yield self._task("all", Withdraw(actor=view.party))

    def about(self, view: GameView, number: int) -> Iterator[PartyTask]:
        """The moves that are due in one dispute and over its claim, and the withdrawal of what this party is owed."""
        claim = view.state.disputes[number].claim
        wanted = (view.name_of(number), f"finalise-{claim}", "withdraw-all")
        yield from (task for task in self.tasks(view) if task.key.endswith(wanted))

    def _due(self, view: GameView, option: MoveOption) -> Move | None:
        """The move of an option, if anybody may make it when it is due; never this party's own timeout."""
        if option.kind == "draw":
            return Draw(actor=view.party, dispute=option.dispute, nonce=self.nonce())
        if option.kind not in DUE or (option.kind == "convene" and view.rules.referee == view.party):
            return None
        dispute = view.state.disputes[option.dispute]
        is_own_defeat = option.kind == "timeout" and mover(view.claim_of(dispute), dispute) == view.party
        return None if is_own_defeat else DUE[option.kind](actor=view.party, dispute=option.dispute)

    def _closings(self, view: GameView) -> Iterator[PartyTask]:
        for number, claim in enumerate(view.state.claims):
            move = Finalise(actor=view.party, claim=number)
            if (self.everybody or claim.prover == view.party) and view.allows(move):
                yield self._task(f"{number}", move)

    def _task(self, name: str, move: Move) -> PartyTask:
        return PartyTask(f"{move.kind}-{name}", None, lambda: move)


# A party's folder: moves, votes and findings that must survive a crash of its program, and fetched files.


@dataclass(frozen=True)
class Sent:
    """A move that was stored before it was made, and the coordinator's time at that moment."""

    move: Move
    time: int


@dataclass
class Workspace:
    """One party's folder for one coordinator, locked by one program at a time.

    The operating system releases the lock when the program ends, also if it is killed. Raises `UnavailableError` if
    another program holds the lock.
    """

    folder: Path
    _lock: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UnavailableError(f"{self.folder}: another program of this party is at work here") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock, so that another program can use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def sent(self, key: str) -> Sent | None:
        """The move that was stored under `key`; `None` if there is none that can be read."""
        noted = self.note(f"moves/{key}")
        try:
            move = read_move(encode(noted["move"]), key) if noted else None
        except (MalformedError, KeyError):
            return None
        time = noted.get("time") if noted else None
        return Sent(move, time) if move is not None and isinstance(time, int) else None

    def send(self, key: str, move: Move, time: int) -> None:
        """Store a move durably, before it is made."""
        self.put_note(f"moves/{key}", {"move": decode(move.to_bytes(), key), "time": time})

    def note(self, key: str) -> Mapping[str, Json] | None:
        """The note under `key`; `None` if there is none that can be read."""
        path = self.path(key)
        if not path.exists():
            return None
        try:
            document = decode(read_document(path), path.name)
        except MalformedError:
            return None
        return document if isinstance(document, dict) else None

    def put_note(self, key: str, value: Mapping[str, Json]) -> None:
        """Store a note durably."""
        write_atomically(self.path(key), encode(dict(value)))

    def drop_note(self, key: str) -> None:
        """Delete a note."""
        self.path(key).unlink(missing_ok=True)

    def forget(self, key: str) -> None:
        """Delete a stored move."""
        self.drop_note(f"moves/{key}")

    def path(self, key: str) -> Path:
        """The file of the note under `key`, which may not exist yet."""
        return self.folder / f"{key}.json"


# A party's program: it reads the game, does its most urgent task, and repeats. It can be killed at any point.

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
