"""Disputes for human readers: their progress and history, how they ended, what is waited for, what silence costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tallystick.core.canonical_json import Json
from tallystick.core.digests import Digest
from tallystick.core.errors import TallyError
from tallystick.core.files import read_document
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.game.context import game_time, mover, time_left
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Contest, Move, Prove, Reveal, Rule
from tallystick.disputes.game.state import DAY, HOUR, MINUTE, Dispute, Phase, Rules, State, Status
from tallystick.disputes.parties.game_view import PHASES, GameView
from tallystick.formats.openings import OpenedOperator
from tallystick.verdicts.opening.files import OPERATOR
from tallystick.verdicts.words import printable

# The progress of a dispute for human readers: level, range, whose turn it is, and how much time is left.

LEVELS: Final = {1: "operators", 2: "records"}


@dataclass(frozen=True)
class DisputeProgress:
    """A dispute at one moment; `mover` has `seconds` left, `None` if no clock or window runs.

    `element` is the one that the challenger named, by its result and its flat place.
    """

    number: int
    claim: int
    phase: str
    level: str
    low: int
    high: int
    size: int
    turn: int
    mover: str
    seconds: int | None
    fault: str | None
    element: tuple[int, int] | None = None

    @property
    def leaves(self) -> str:
        """The contested leaves of all, in words.

        >>> DisputeProgress(0, 0, "leaf", "records", 3, 5, 9, 1, "prover", 60, None).leaves
        '3–4 of 9'
        """
        return f"{self.low}–{self.high - 1} of {self.size}"

    def to_json(self) -> dict[str, Json]:
        """All fields as a JSON object; the range is [low, high)."""
        return {
            "claim": self.claim,
            "dispute": self.number,
            "element": None if self.element is None else list(self.element),
            "fault": self.fault,
            "level": self.level,
            "mover": self.mover,
            "phase": self.phase,
            "range": [self.low, self.high],
            "seconds": self.seconds,
            "size": self.size,
            "turn": self.turn,
        }


def progress_of(state: State, number: int, now: int) -> DisputeProgress:
    """The progress of dispute `number` at real time `now`, in seconds."""
    dispute = state.disputes[number]
    is_moot = dispute.phase is not Phase.SETTLED and state.claims[dispute.claim].status is not Status.OPEN
    if mover(state.claims[dispute.claim], dispute) is not None:
        left = time_left(dispute, game_time(state, now))
    else:
        left = dispute.deadline - game_time(state, now)
    is_over = is_moot or dispute.phase is Phase.SETTLED
    has_no_referee = dispute.phase is Phase.RULING and state.rules.referee is None
    return DisputeProgress(
        number=number,
        claim=dispute.claim,
        phase="moot" if is_moot else dispute.phase.value,
        level=LEVELS[dispute.level],
        low=dispute.low,
        high=dispute.high,
        size=dispute.size,
        turn=dispute.turn,
        mover="anybody" if is_moot or has_no_referee else PHASES[dispute.phase].mover,
        seconds=None if is_over else max(0, left),
        fault=None if dispute.fault is None else dispute.fault.value,
        element=dispute.element,
    )


def bar(low: int, high: int, size: int, width: int = 32) -> str:
    """A bar of `width` characters with the contested leaves of a tree marked; there is at least one mark.

    >>> bar(8, 16, 32, width=8)
    '··██····'
    """
    start = min(low * width // size, width - 1)
    end = max(start + 1, -(-high * width // size))
    return "·" * start + "█" * (end - start) + "·" * (width - end)


def span(seconds: int | None) -> str:
    """A duration in its two largest units.

    >>> span(2 * 86400 + 3 * 3600 + 5), span(59), span(None)
    ('2d 3h', '59s', '')
    """
    if seconds is None:
        return ""
    if seconds <= 0:
        return "over"
    units = [(1 << 62, DAY, "d"), (DAY, HOUR, "h"), (HOUR, MINUTE, "m"), (MINUTE, 1, "s")]
    counts = [(seconds % above // unit, name) for above, unit, name in units]
    first = next(i for i, (count, _) in enumerate(counts) if count)
    return " ".join(f"{count}{name}" for count, name in counts[first : first + 2] if count)


# The history of one dispute: every move, with the progress of the dispute after it.


@dataclass(frozen=True)
class HistoryEntry:
    """A move, the role of its actor, what it does in a few words, and the progress of the dispute after it."""

    entry: MoveEntry
    role: str
    summary: str
    after: DisputeProgress

    def to_json(self) -> dict[str, Json]:
        """The move as data, and the progress after it."""
        return {
            "after": self.after.to_json(),
            "move": self.entry.move.to_json(),
            "number": self.entry.number,
            "role": self.role,
            "time": self.entry.time,
        }


def dispute_history(rules: Rules, entries: Iterable[MoveEntry], number: int) -> list[HistoryEntry]:
    """The moves of dispute `number`, the contest that opened it first."""
    state, history = State(rules), list[HistoryEntry]()
    for entry in entries:
        before, state = state, apply(state, entry.move, entry.time)
        opens = isinstance(entry.move, Contest) and len(before.disputes) == number
        if opens or getattr(entry.move, "dispute", None) == number:
            role = role_of(state, number, entry.move.actor)
            history.append(HistoryEntry(entry, role, describe_move(entry.move), progress_of(state, number, entry.time)))
    return history


def role_of(state: State, number: int, party: str) -> str:
    """The role of a party in a dispute: `prover`, `challenger`, …, `member` or `anybody`."""
    dispute, rules = state.disputes[number], state.rules
    roles = {"prover": state.claims[dispute.claim].prover, "challenger": dispute.challenger}
    named = {"referee": rules.referee, "beacon": rules.beacon, "planter": rules.planter}
    named_role = next((role for role, name in (roles | named).items() if name == party), None)
    return named_role or ("member" if party in rules.members else "anybody")


def describe_move(move: Move) -> str:
    """A move in a few words."""
    words = WORDS.get(move.kind, move.kind)
    return words if isinstance(words, str) else words(move)


OBJECTIONS: Final = {
    "budget": "objects: the errors of all operators add up",
    "structure": "objects: what was opened is not what was claimed",
}
WORDS: Final[Mapping[str, str | Callable[[Any], str]]] = {
    "appeal": "asks a larger committee",
    "choose": lambda move: f"child {move.child} differs",
    "concede": "gives up",
    "contest": lambda move: f"contests {move.low}–{move.high - 1} of claim {move.claim}",
    "convene": "calls a committee",
    "descend": lambda move: f"opens the record: {move.size} operators",
    "disclose": lambda move: f"voted: {move.vote.value} at fault",
    "dismiss": "the claim is slashed already",
    "draw": "draws the committee",
    "partition": lambda move: f"opens {len(move.cuts)} leaves",
    "pinpoint": lambda move: f"names element {move.element} of result {move.result}",
    "protest": lambda move: OBJECTIONS.get(move.ground, move.ground),
    "prove": "brings evidence that convicts",
    "reveal": "opens the last leaf",
    "rule": lambda move: f"finds {move.fault.value} at fault",
    "settle": "lets the votes take effect",
    "tally": "counts the votes",
    "timeout": "the clock has run out",
    "unseal": "shows that the claim was planted",
    "vote": "commits to a vote",
}
"""What each kind of move does, in a few words."""


# How disputes ended, for people: at which operator, why, and at whose fault.

REASON: Final = "reason.txt"
"""The file of a referee's reason at the board."""
REASON_MAX: Final = 4096
EVIDENCE: Final = {
    "cast": "evidence that everybody can check: it converts a number to another value",
    "edge": "evidence that everybody can check: it reads other bytes than were given to it",
    "product": "evidence that everybody can check: it multiplies two numbers to another value",
}
WHY: Final = {
    "concede": "it gave up",
    "dismiss": "the claim was slashed in another dispute",
    "settle": "a committee voted",
    "timeout": "its clock ran out",
}
ENDS: Final = {
    "prover": "challenger's objection upheld, prover at fault",
    "challenger": "challenger's objection dismissed, challenger at fault",
    "nobody": "undecided, nobody at fault",
}


@dataclass(frozen=True)
class DisputeEnding:
    """Where a dispute has arrived, and why it ended; `operator` is its place and name once a single one is left."""

    record: int | None
    operator: tuple[int, int, str] | None
    why: str = ""

    @property
    def place(self) -> str:
        """Record and operator in words; empty while several are left.

        >>> DisputeEnding(33, (627, 829, "aten._to_copy.default")).place
        'record 33, operator 627 of 829, aten._to_copy.default'
        """
        record = "" if self.record is None else f"record {self.record}"
        if self.operator is None:
            return record
        number, size, name = self.operator
        return ", ".join(filter(None, (record, f"operator {number} of {size}", name)))

    def to_json(self) -> dict[str, Json]:
        """Record, operator by place and name, and the reason."""
        number, _, name = self.operator or (None, None, None)
        return {"operator": name, "operator_index": number, "record": self.record, "why": self.why}


def ending_of(history: Sequence[HistoryEntry], folder_of: Callable[[Digest], Path]) -> DisputeEnding:
    """The place and the reason in which the moves of a dispute end; `folder_of` fetches files of moves.

    A name or a reason that cannot be fetched is left out: the ending counts without it.
    """
    records = [each.after for each in history if each.after.level == "records"]
    record = records[-1].low if records and records[-1].high - records[-1].low == 1 else None
    now, name, why = history[-1].after, "", WHY.get(history[-1].entry.move.kind, "")
    for move in (each.entry.move for each in history):
        if isinstance(move, Prove):
            name, why = move.evidence.record.operator, EVIDENCE[move.evidence.ground]
        elif isinstance(move, Reveal) and now.level == "operators":
            name = _operator(move.data, folder_of) or name
        elif isinstance(move, Rule):
            why = reason_of(move.reason, folder_of)
    is_one = now.level == "operators" and now.high - now.low == 1
    return DisputeEnding(record, (now.low, now.size, name) if is_one else None, why)


def dispute_ending(dispute: Dispute, number: int, ending: DisputeEnding) -> str:
    """Where a dispute ended, and at whose fault, in one sentence."""
    place = f" at {ending.place}" if ending.place else ""
    if dispute.fault is None:
        return f"dispute {number} is open{place}"
    return f"dispute {number} ended{place}: {ENDS[dispute.fault]}"


def ending_lines(dispute: Dispute, number: int, ending: DisputeEnding, module: str | None = None) -> Iterator[str]:
    """Where a dispute ended, at whose fault, in which `module` of the model, and why: a line for each."""
    yield printable(dispute_ending(dispute, number, ending))
    if module:
        yield f"the operator is in {module}"
    if ending.why:
        yield f"because: {printable(ending.why)}"


def _operator(data: Digest, folder_of: Callable[[Digest], Path]) -> str:
    try:
        return OpenedOperator.from_bytes(read_document(folder_of(data) / OPERATOR), OPERATOR).record.operator
    except (TallyError, OSError):
        return ""


def reason_of(name: Digest, folder_of: Callable[[Digest], Path]) -> str:
    """What a referee wrote to its ruling; empty if it cannot be fetched."""
    try:
        return (folder_of(name) / REASON).read_bytes()[:REASON_MAX].decode(errors="replace")
    except (TallyError, OSError):
        return ""


# What a party's program waits for, and until when, for people. Times are those of the coordinator, shown in UTC.


@dataclass(frozen=True)
class Wait:
    """What is waited for, as the end of a sentence, and until which real time in seconds; `None` for no end."""

    what: str
    until: int | None = None
    is_in_dispute: bool = False

    def sentence(self, now: int) -> str:
        """The whole sentence at the coordinator's time `now`.

        >>> Wait("the challenger's move in dispute 3", 1_000_045).sentence(1_000_000)
        "waiting for the challenger's move in dispute 3 until 13:47:25 UTC (in 45 s)"
        """
        return f"waiting for {self.what}{deadline(self.until, now)}"


def deadline(until: int | None, now: int) -> str:
    """The end of a sentence that says when something ends; empty if nothing runs.

    >>> deadline(1_000_045, 1_000_000), deadline(1_200_000, 1_000_000), deadline(7, 8)
    (' until 13:47:25 UTC (in 45 s)', ' until 1970-01-14 21:20:00 UTC (in 2.31 days)', ', whose time is over')
    """
    if until is None:
        return ""
    return f" until {clock_time(until, now)} (in {in_words(until - now)})" if until > now else ", whose time is over"


def clock_time(second: int, now: int) -> str:
    """A second as the time of day in UTC, with the date if it is another day than that of `now`."""
    at, today = (datetime.fromtimestamp(each, UTC) for each in (second, now))
    return f"{at:%H:%M:%S} UTC" if at.date() == today.date() else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def in_words(seconds: int) -> str:
    """A duration in one unit, of which there are at least two, except for seconds."""
    for unit, name in ((DAY, "days"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds} s"


def waits_of(view: GameView, watched: Collection[int] = (), audited: Collection[int] = ()) -> Iterator[Wait]:
    """What the program of `view.party` waits for: in its disputes, its claims, and for money that it is owed.

    It waits for the windows of `watched` claims too, and for its own audits of those in `audited`.
    """
    if view.pause_end is not None:
        yield Wait("the end of the pause, in which no clock runs,", view.pause_end)
    for number, dispute in enumerate(view.state.disputes):
        if dispute.phase is not Phase.SETTLED and view.is_in(number):
            yield wait_in(view, number)
    for number, claim in enumerate(view.state.claims):
        is_waited_for = number in watched or claim.prover == view.party
        if claim.status is Status.OPEN and not claim.disputes and is_waited_for:
            yield _of_claim(view, number, number in audited)
    for credit in view.state.owed.get(view.party, ()):
        yield Wait(f"{credit.amount:,} to be paid out", credit.ripe)


def wait_in(view: GameView, number: int) -> Wait:
    """What an open dispute waits for."""
    progress, dispute = progress_of(view.state, number, view.now), view.state.disputes[number]
    until = None if progress.seconds is None else view.now + progress.seconds
    if progress.phase == "moot":
        return Wait(f"dispute {number} to be closed, for its claim is slashed already", None, True)
    if dispute.phase is Phase.RULING and view.rules.referee is None:
        return Wait(f"evidence in dispute {number}; then anybody may call a committee; there is time", until, True)
    is_own = mover(view.claim_of(dispute), dispute) == view.party
    what = "this party's own move" if is_own else PHASES[dispute.phase].awaited
    return Wait(f"{what} in dispute {number}", until, True)


def _of_claim(view: GameView, number: int, is_audited: bool) -> Wait:
    claim = view.state.claims[number]
    if claim.deadline <= view.time:
        return Wait(f"claim {number} to be made final by its prover: nobody contested it in time")
    until = view.now + claim.deadline - view.time
    if is_audited:
        return Wait(f"the audit of claim {number}, which can be contested", until)
    return Wait(f"claim {number} to become final: it can be contested", until)


# What a prover that says nothing loses, and when: for its own program, and for whoever looks at the coordinator.


def silent_provers(view: GameView) -> Iterator[str]:
    """A sentence for each dispute whose prover has let half of the time for its move pass."""
    for number, dispute in enumerate(view.state.disputes):
        claim = view.claim_of(dispute)
        if dispute.phase not in (Phase.PARTITION, Phase.LEAF) or claim.status is not Status.OPEN:
            continue
        left = time_left(dispute, view.time)
        if mover(claim, dispute) == claim.prover and 2 * left <= dispute.clocks.prover:
            when = deadline(view.now + left, view.now) if left > 0 else ": its time is over"
            yield (
                f"dispute {number}: the prover of claim {dispute.claim} is silent, and loses {claim.bond:,} unless it "
                f"moves{when}"
            )


def before_silence(view: GameView, number: int) -> str:
    """What becomes of a claim if nobody answers for it; empty once it cannot be contested any more."""
    claim, rules = view.state.claims[number], view.rules
    left = claim.deadline - view.time
    if claim.status is not Status.OPEN or (left <= 0 and not claim.disputes):
        return ""
    until = deadline(view.now + left, view.now) if left > 0 else ""
    return (
        f"claim {number} can be contested{until}. Whoever then answers nothing for {in_words(rules.clock)} in all, or "
        f"{in_words(rules.extension)} later on, loses {claim.bond:,} although it is right: leave this program running, "
        "or `tally watchtower` with what `tally dispute delegate` prints"
    )
