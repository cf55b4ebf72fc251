"""The assumptions about the world around a dispute: costs, prices and probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from tallystick.disputes.game.rules import DAY, MONEY_MAX, Rules
from tallystick.errors import UsageError

YEAR: Final = 365 * DAY
PROBABILITIES: Final = frozenset(
    ("audit_probability", "detection", "honesty", "planted", "fault_rate", "certain", "planted_cases", "lazy_error")
)
"""The fields of a workload that are probabilities."""


@dataclass(frozen=True)
class ClaimKind:
    """One kind of claim, in the coordinator's unit of money; the defaults are the reference workload.

    Money: `revenue` is what a customer pays once the claim is final. `cost_honest` and `cost_cheat` are the costs of an
    honest and of a cheating run. `cost_verify` is the recomputation of a sample. `cost_answer` and `cost_challenge` are
    each side's work in one dispute. `cost_vote` is the judgement of one operator. `gas_…` are amounts of gas, of
    `gas_price` each. `capital_rate` is the yearly interest rate.

    Probabilities: `audit_probability`, that a claim is recomputed before the window closes; `detection`, that this
    finds the cheat and that the dispute is decided; `honesty`, that a member of the pool is honest (`pool` members, 0
    for a large one); `planted` and `fault_rate`, that a claim holds a planted or another fault whose finder is paid;
    `certain`, that a dispute is decided by a theorem; `planted_cases`, that a member's case is a planted one;
    `lazy_error`, that a member who did not look votes wrongly there.
    """

    revenue: float = 130_000
    cost_honest: float = 100_000
    cost_cheat: float = 40_000
    cost_verify: float = 5_000
    cost_answer: float = 10_000
    cost_challenge: float = 10_000
    cost_vote: float = 500
    audit_probability: float = 0.2
    detection: float = 0.99
    honesty: float = 0.8
    pool: int = 0
    planted: float = 0.03
    fault_rate: float = 0.0
    certain: float = 0.0
    planted_cases: float = 0.1
    lazy_error: float = 0.5
    capital_rate: float = 0.1
    gas_price: float = 0.0
    gas_claim: float = 200_000
    gas_answer: float = 1_500_000
    gas_challenge: float = 500_000
    answer_seconds: float = 600
    records: int = 1_000
    operators: int = 2_000
    sybils: int = 100

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 <= value <= MONEY_MAX:
                raise UsageError(f"{each.name}: {value} is not from 0 to {MONEY_MAX}")
            if each.name in PROBABILITIES and value > 1:
                raise UsageError(f"{each.name}: {value} is no probability")

    @property
    def saving(self) -> float:
        """What a cheat saves."""
        return self.cost_honest - self.cost_cheat

    @property
    def answering(self) -> float:
        """What one dispute costs the prover, gas included."""
        return self.cost_answer + self.gas_answer * self.gas_price

    @property
    def challenging(self) -> float:
        """What one dispute costs the challenger, gas included."""
        return self.cost_challenge + self.gas_challenge * self.gas_price

    @property
    def paid_faults(self) -> float:
        """The share of claims with a fault whose finder is paid."""
        return self.planted + (1 - self.planted) * self.fault_rate


DEFAULT_RULES: Final = Rules(treasury="0" * 64)
"""The default rules; the treasury's key does not matter here."""


@dataclass(frozen=True)
class Economy:
    """The rules of a coordinator, and the kind of claims that are posted there."""

    rules: Rules = DEFAULT_RULES
    workload: ClaimKind = field(default_factory=ClaimKind)
