"""The conditions under which nobody gains by cheating, and every honest party is paid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tallystick.commitments.encoding import Json
from tallystick.disputes.economics import challenging, collusion, committee, deterrence, money, spam
from tallystick.disputes.economics.workload import Economy

WRONG_MAX = 0.01
"""The largest probability with which a dispute may end wrongly."""


@dataclass(frozen=True)
class Condition:
    """One inequality, `value` `relation` `threshold`."""

    name: str
    value: float
    threshold: float
    relation: Literal[">", "≥", "≤"] = ">"
    unit: str = "money"

    @property
    def is_met(self) -> bool:
        """Whether the inequality holds."""
        if self.relation == "≤":
            return self.value <= self.threshold
        return self.value > self.threshold or (self.relation == "≥" and self.value == self.threshold)

    def to_json(self) -> Json:
        """As a JSON object."""
        return {
            "condition": self.name,
            "value": rounded(self.value),
            "relation": self.relation,
            "threshold": rounded(self.threshold),
            "unit": self.unit,
            "met": self.is_met,
        }


def conditions(economy: Economy) -> tuple[Condition, ...]:
    """All conditions, in the order of the page that derives them (`docs/economics.md`)."""
    return (*_of_the_prover(economy), *_of_challengers(economy), *_of_spam(economy), *_of_the_committee(economy))


def unmet(economy: Economy) -> tuple[str, ...]:
    """The names of the conditions that do not hold."""
    return tuple(each.name for each in conditions(economy) if not each.is_met)


def rounded(number: float) -> float | None:
    """The number with six digits, for JSON; `None` for infinity and NaN."""
    return float(f"{number:.6g}") if abs(number) < float("inf") else None


def _of_the_prover(economy: Economy) -> Iterator[Condition]:
    saving, bond = economy.workload.saving, economy.rules.prover_bond
    yield Condition("honest work pays", deterrence.honest_profit(economy), 0.0)
    yield Condition("cheating does not pay", deterrence.cheating_risk(economy, bond), saving)
    with_a_friend = deterrence.cheating_risk(economy, money.bond_at_risk(economy.rules))
    yield Condition("cheating does not pay, accused by a friend", with_a_friend, saving)


def _of_challengers(economy: Economy) -> Iterator[Condition]:
    yield Condition("being right pays", challenging.accusing_gain(economy), 0.0)
    yield Condition("looking pays", challenging.looking_pay(economy), economy.workload.cost_verify)
    cost, gain = spam.false_challenge_cost(economy), spam.false_challenge_prize(economy)
    yield Condition("a false challenge does not pay", cost, gain)


def _of_spam(economy: Economy) -> Iterator[Condition]:
    worst, work = spam.least_compensated(economy), economy.workload
    owed = spam.MARGIN * spam.imposed(economy, worst)
    yield Condition("a falsely challenged prover is compensated", spam.compensation(economy, worst), owed, "≥")
    seconds = spam.sybils(economy, work.sybils).answering_seconds
    name = f"{work.sybils} challenges can be answered in time"
    yield Condition(name, seconds, float(economy.rules.clock), "≤", "seconds")


def _of_the_committee(economy: Economy) -> Iterator[Condition]:
    work = economy.workload
    yield Condition("disputes rarely end wrongly", committee.wrong(economy), WRONG_MAX, "≤", "probability")
    cost, gain = collusion.worst_just_appeal(economy)
    yield Condition("appealing a wrong ruling pays", gain, cost, "≥")
    cost, gain = collusion.worst_guilty_appeal(economy)
    yield Condition("appealing a right ruling does not pay", cost, gain, "≥")
    yield Condition("a vote's fee pays its work", float(economy.rules.vote_fee), work.cost_vote, "≥")
    yield Condition("voting without looking does not pay", collusion.lazy_vote_loss(economy), work.cost_vote)
