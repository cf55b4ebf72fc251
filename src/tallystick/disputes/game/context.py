"""The context in which a rule is applied: the state and two times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, State
from tallystick.errors import RuleError


@dataclass(frozen=True)
class Context:
    """A state at a moment, in seconds: `now` is real time, for withdrawals; `time` is game time, which pauses stop."""

    state: State
    now: int
    time: int

    @property
    def rules(self) -> Rules:
        """The rules of this coordinator."""
        return self.state.rules

    def with_state(self, state: State) -> Context:
        """The context with another state, at the same moment."""
        return replace(self, state=state)

    def claim(self, number: int) -> PostedClaim:
        """Claim `number`; raises `RuleError` with code `unknown` if there is none."""
        allow(number < len(self.state.claims), "unknown", f"there is no claim {number}")
        return self.state.claims[number]

    def dispute(self, number: int) -> Dispute:
        """Dispute `number`; raises `RuleError` with code `unknown` if there is none."""
        allow(number < len(self.state.disputes), "unknown", f"there is no dispute {number}")
        return self.state.disputes[number]

    def change_claim(self, number: int, **changes: Any) -> Context:
        """The context in which claim `number` has changed."""
        return self.with_state(replace(self.state, claims=_changed(self.state.claims, number, changes)))

    def change_dispute(self, number: int, **changes: Any) -> Context:
        """The context in which dispute `number` has changed."""
        return self.with_state(replace(self.state, disputes=_changed(self.state.disputes, number, changes)))


def allow(condition: bool, code: str, sentence: str) -> None:
    """Raise `RuleError` with `code` unless the condition holds."""
    if not condition:
        raise RuleError(code, sentence)


def mover(claim: PostedClaim, dispute: Dispute) -> str | None:
    """The party whose clock runs; `None` in the phases of referee and committee."""
    if dispute.phase in (Phase.PARTITION, Phase.LEAF):
        return claim.prover
    return dispute.challenger if dispute.phase is Phase.CHOOSE else None


def time_left(dispute: Dispute, time: int) -> int:
    """The seconds that the party to move has left; zero or less once it is late."""
    clocks = dispute.clocks
    left = clocks.challenger if dispute.phase is Phase.CHOOSE else clocks.prover
    return left - (time - clocks.since)


def _changed(entries: tuple[Any, ...], number: int, changes: dict[str, Any]) -> tuple[Any, ...]:
    return (*entries[:number], replace(entries[number], **changes), *entries[number + 1 :])
