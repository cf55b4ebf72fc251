"""The rules of one coordinator: bonds, clocks and windows, fixed when it is set up and the same for everybody."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from tallystick.commitments.digests import Digest
from tallystick.documents.document import Document

WAYS_MAX: Final = 32
MEMBERS_MAX: Final = 255
LEAVES_MAX: Final = 1 << 32
PROOF_MAX: Final = 64
MONEY_MAX: Final = (1 << 53) - 1
RESULT_MAX: Final = (1 << 32) - 1
ELEMENT_MAX: Final = (1 << 48) - 1

Party = Annotated[str, Field(pattern=r"^(0x[0-9a-f]{40}|[0-9a-f]{64})$")]
"""An Ethereum address, or an Ed25519 key: what a party signs its moves with."""
Money = Annotated[int, Field(ge=0, le=MONEY_MAX)]
"""An amount in the coordinator's unit: gwei on Ethereum."""
Seconds = Annotated[int, Field(ge=1, le=1 << 32)]
Permille = Annotated[int, Field(ge=0, le=1000)]

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


class Rules(Document):
    """What everybody agrees on before the first claim.

    `reward` is the share of the prover's bond, in thousandths, that goes to the challenger that was right; the rest
    goes to the treasury, so that accusing oneself costs. An empty `referee` means that no single party rules, an empty
    `beacon` that anybody may bring the nonce (a contract draws it itself), an empty `guardian` that nobody can pause.
    """

    prover_bond: Money = 1_000_000
    challenger_bond: Money = 150_000
    appeal_bond: Money = 100_000
    stake: Money = 200_000
    vote_fee: Money = 2_000
    reward: Permille = 500
    challenge_window: Seconds = 7 * DAY
    clock: Seconds = 2 * DAY
    extension: Seconds = 3 * HOUR
    referee_window: Seconds = HOUR
    vote_window: Seconds = DAY
    reveal_window: Seconds = DAY
    appeal_window: Seconds = DAY
    withdrawal_delay: Seconds = DAY
    pause_max: Seconds = 3 * DAY
    pause_rest: Seconds = 14 * DAY
    ways: Annotated[int, Field(ge=2, le=WAYS_MAX)] = 16
    committee: Annotated[int, Field(ge=1, le=63)] = 7
    appeals: Annotated[int, Field(ge=0, le=4)] = 2
    members: Annotated[tuple[Party, ...], Field(max_length=MEMBERS_MAX)] = ()
    referee: Party | None = None
    beacon: Party | None = None
    planter: Party | None = None
    guardian: Party | None = None
    treasury: Party

    @model_validator(mode="after")
    def _make_sense(self) -> Self:
        if len(set(self.members)) < len(self.members):
            raise ValueError("members: the same member twice")
        if self.deposit > self.prover_bond:
            raise ValueError("prover_bond: smaller than the fees of one committee")
        if self.vote_fee > self.stake:
            raise ValueError("stake: smaller than the fee of one vote, which an absent member loses")
        return self

    @property
    def deposit(self) -> int:
        """What a challenger advances for the first committee: whoever asks for a judgement pays for it first."""
        return self.vote_fee * self.committee

    @property
    def holding(self) -> int:
        """How long a vote can be held against a member once it is counted: what may follow it, and one delay."""
        committee = 2 * self.vote_window + self.reveal_window + self.appeal_window
        return self.appeals * committee + self.appeal_window + self.withdrawal_delay

    @property
    def identity(self) -> Digest:
        """The digest by which signed moves name this coordinator's rules."""
        return self.digest_as("rules")
