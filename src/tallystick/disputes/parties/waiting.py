"""What a party's program waits for, and until when, for people. Times are those of the coordinator, shown in UTC."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tallystick.disputes.game.context import mover
from tallystick.disputes.game.pausing import with_expired_pause_lifted
from tallystick.disputes.game.rules import DAY, HOUR, MINUTE
from tallystick.disputes.game.state import Phase, Status
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.progress import MOVERS, progress_of

AWAITED: Final = {
    Phase.RULING: "the referee's ruling",
    Phase.DRAWING: "the nonce that draws the committee",
    Phase.COMMITTING: "the committee's votes",
    Phase.REVEALING: "the committee to disclose its votes",
    Phase.APPEALABLE: "an appeal",
}


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
    since = with_expired_pause_lifted(view.state, view.now).pausing.since
    if since is not None:
        yield Wait("the end of the pause, in which no clock runs,", since + view.rules.pause_max)
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
    if (party := mover(view.claim_of(dispute), dispute)) is not None:
        whose = "this party's own" if party == view.party else f"the {MOVERS[dispute.phase]}'s"
        return Wait(f"{whose} move in dispute {number}", until, True)
    return Wait(f"{AWAITED[dispute.phase]} in dispute {number}", until, True)


def _of_claim(view: GameView, number: int, is_audited: bool) -> Wait:
    claim = view.state.claims[number]
    if claim.deadline <= view.time:
        return Wait(f"claim {number} to be made final by its prover: nobody contested it in time")
    until = view.now + claim.deadline - view.time
    if is_audited:
        return Wait(f"the audit of claim {number}, which can be contested", until)
    return Wait(f"claim {number} to become final: it can be contested", until)
