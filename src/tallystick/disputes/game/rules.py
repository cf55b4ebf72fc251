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
"""The name of a party: the Ethereum address or the public Ed25519 key with which it signs its moves."""
Money = Annotated[int, Field(ge=0, le=MONEY_MAX)]
"""An amount in the coordinator's unit: gwei on Ethereum."""
Seconds = Annotated[int, Field(ge=1, le=1 << 32)]
Permille = Annotated[int, Field(ge=0, le=1000)]

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


class Rules(Document):
    """The rules that all parties accept before the first claim.

    `reward` is the share of the prover's bond, in thousandths, for the challenger that was right. The rest goes to the
    treasury, so that a prover that accuses itself loses money. Without a `referee` no single party rules. Without a
    `beacon` anybody may bring the nonce (a contract draws it itself). Without a `guardian` nobody can pause.
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
        """The fees of the first committee, which the challenger pays in advance because it asks for the judgement."""
        return self.vote_fee * self.committee

    @property
    def holding(self) -> int:
        """How long after its count a vote can cost a member its stake: all later rounds, and one withdrawal delay."""
        committee = 2 * self.vote_window + self.reveal_window + self.appeal_window
        return self.appeals * committee + self.appeal_window + self.withdrawal_delay

    @property
    def identity(self) -> Digest:
        """The digest by which signed moves name this coordinator's rules."""
        return self.digest_as("rules")
