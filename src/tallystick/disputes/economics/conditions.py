"""The conditions under which nobody gains by cheating, also by spam, and the designs that meet them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from tallystick.core.canonical_json import Json
from tallystick.disputes.economics import costs
from tallystick.disputes.economics.costs import (
    YEAR,
    Economy,
    appeal_fees,
    appeals_expected,
    lost_accusation,
    reward,
    wrong,
)
from tallystick.disputes.game.state import Rules, rounds

# What false challenges cost, who is paid for them, and how long they can delay a claim.

MARGIN = 1.5
"""A challenger's bond has to be this many times what its challenge costs the prover."""


def false_challenge_cost(economy: Economy) -> float:
    """What a false challenge costs in expectation: (1 − W)·(bond + fees), and gas."""
    gas = economy.workload.gas_challenge * economy.workload.gas_price
    return (1 - wrong(economy)) * lost_accusation(economy.rules) + gas


def false_challenge_prize(economy: Economy) -> float:
    """What a false challenge wins in expectation: W·reward, because it wins only if the committee errs."""
    return wrong(economy) * reward(economy.rules)


@dataclass(frozen=True)
class Delay:
    """How long, in seconds, one false challenge keeps a claim from being final, and what it costs."""

    appeals: int | None
    seconds: float
    cost: float


def delays(economy: Economy) -> Iterator[Delay]:
    """The delays that a false challenge can buy: silence until its clock ends (`appeals` is `None`), or committees.

    The prover answers at once, and each nonce takes one vote window to come. More challenges at the same time buy no
    longer delay: they run side by side, and none can be opened after the window.
    """
    rules, work = economy.rules, economy.workload
    played = rules.clock + (turns(rules, work.records, work.operators) - 1) * rules.extension
    yield Delay(None, played, rules.challenger_bond)
    fees = appeal_fees(economy)
    for appeals in range(len(fees) + 1):
        votes = (appeals + 1) * (2 * rules.vote_window + rules.reveal_window)
        waits = min(appeals + 1, len(fees)) * rules.appeal_window
        cost = lost_accusation(rules) + appeals * rules.appeal_bond + sum(fees[:appeals])
        yield Delay(appeals, played + rules.referee_window + votes + waits, cost)


def turns(rules: Rules, records: int, operators: int) -> int:
    """The number of the challenger's moves from `records` records down to one of `operators` operators; at least 1."""
    return max(1, rounds(records, rules.ways) + rounds(operators, rules.ways))


def compensation(economy: Economy, delay: Delay) -> float:
    """What an honest prover is paid after a false challenge: the challenger's bond, and the bonds of its appeals."""
    return economy.rules.challenger_bond + (delay.appeals or 0) * economy.rules.appeal_bond


def imposed(economy: Economy, delay: Delay) -> float:
    """What a false challenge costs the prover in expectation.

    The sum of its answers, the interest on bond and revenue during the delay, its own appeals, and its loss if the
    ruling is wrong: bond, revenue and the missed compensation.
    """
    work = economy.workload
    stake = economy.rules.prover_bond + work.revenue
    waiting = stake * work.capital_rate * delay.seconds / YEAR
    if delay.appeals is None:
        return work.answering + waiting
    lost = wrong(economy) * (stake + compensation(economy, delay))
    return work.answering + waiting + appeals_expected(economy) + lost


def least_compensated(economy: Economy) -> Delay:
    """The false challenge that compensates the prover least for what it costs."""
    return min(delays(economy), key=lambda each: compensation(economy, each) - MARGIN * imposed(economy, each))


@dataclass(frozen=True)
class Spam:
    """What `challenges` false challenges of one claim cost the spammer, and what they mean for an honest prover."""

    challenges: int
    lost: float
    won: float
    imposed: float
    answering_seconds: float
    wrongly_convicted: float


def sybils(economy: Economy, challenges: int) -> Spam:
    """The effect of `challenges` false challenges, each taken to a committee and answered without shared work."""
    delay = next(each for each in delays(economy) if each.appeals == 0)
    return Spam(
        challenges=challenges,
        lost=challenges * lost_accusation(economy.rules),
        won=challenges * compensation(economy, delay),
        imposed=challenges * imposed(economy, delay),
        answering_seconds=challenges * economy.workload.answer_seconds,
        wrongly_convicted=1 - (1 - wrong(economy)) ** challenges,
    )


# The conditions under which nobody gains by cheating, and every honest party is paid.

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
    rules, work = economy.rules, economy.workload
    friendly_risk = costs.cheating_risk(economy, costs.bond_at_risk(rules))
    worst, answering = least_compensated(economy), sybils(economy, work.sybils).answering_seconds
    just_cost, just_gain = costs.worst_just_appeal(economy)
    guilty_cost, guilty_gain = costs.worst_guilty_appeal(economy)
    return (
        Condition("honest work pays", costs.honest_profit(economy), 0.0),
        Condition("cheating does not pay", costs.cheating_risk(economy, rules.prover_bond), work.saving),
        Condition("cheating does not pay, accused by a friend", friendly_risk, work.saving),
        Condition("being right pays", costs.accusing_gain(economy), 0.0),
        Condition("looking pays", costs.looking_pay(economy), work.cost_verify),
        Condition("a false challenge does not pay", false_challenge_cost(economy), false_challenge_prize(economy)),
        Condition(
            "a falsely challenged prover is compensated",
            compensation(economy, worst),
            MARGIN * imposed(economy, worst),
            "≥",
        ),
        Condition(f"{work.sybils} challenges can be answered in time", answering, float(rules.clock), "≤", "seconds"),
        Condition("disputes rarely end wrongly", costs.wrong(economy), WRONG_MAX, "≤", "probability"),
        Condition("appealing a wrong ruling pays", just_gain, just_cost, "≥"),
        Condition("appealing a right ruling does not pay", guilty_cost, guilty_gain, "≥"),
        Condition("a vote's fee pays its work", float(rules.vote_fee), work.cost_vote, "≥"),
        Condition("voting without looking does not pay", costs.lazy_vote_loss(economy), work.cost_vote),
    )


def unmet(economy: Economy) -> tuple[str, ...]:
    """The names of the conditions that do not hold."""
    return tuple(each.name for each in conditions(economy) if not each.is_met)


def rounded(number: float) -> float | None:
    """The number with six digits, for JSON; `None` for infinity and NaN."""
    return float(f"{number:.6g}") if abs(number) < float("inf") else None


# For which designs all conditions hold: ranges of bonds, committees and gas prices.

AUDIT_PROBABILITIES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
COMMITTEES: Final = (1, 3, 5, 7, 9, 15, 21, 31, 51, 63)
HONESTIES: Final = (0.51, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
RATIOS: Final = tuple(float(f"{10 ** (step / 20):.6g}") for step in range(-20, 81))
"""Bond ÷ saving, from 0.1 to 10,000, with twenty steps for each power of ten."""
PRECISION: Final = 1e-4
DEAREST_GAS: Final = 1e6


@dataclass(frozen=True)
class Range:
    """The smallest and the largest bond ÷ saving at which all conditions hold, and the conditions that fail beyond."""

    least: float
    largest: float
    fails_below: tuple[str, ...]
    fails_above: tuple[str, ...]


def with_bond(economy: Economy, audit_probability: float, ratio: float) -> Economy:
    """The same economy at another audit probability, and with a bond of `ratio` times what a cheat saves."""
    rules = economy.rules.model_copy(update={"prover_bond": round(ratio * economy.workload.saving)})
    return Economy(rules, replace(economy.workload, audit_probability=audit_probability))


def with_committee(economy: Economy, honesty: float, seats: int) -> Economy:
    """The same economy with another share of honest members, and another size of the first committee."""
    rules = economy.rules.model_copy(update={"committee": seats})
    return Economy(rules, replace(economy.workload, honesty=honesty))


def bond_range(economy: Economy, audit_probability: float) -> Range | None:
    """The interval of bonds in which all conditions hold; `None` if it contains none of `RATIOS`."""

    def fails(ratio: float) -> tuple[str, ...]:
        return unmet(with_bond(economy, audit_probability, ratio))

    inside = [place for place, ratio in enumerate(RATIOS) if not fails(ratio)]
    if not inside:
        return None
    first, last = inside[0], inside[-1]
    outside = _edge(fails, RATIOS[first], RATIOS[first - 1]) if first else (RATIOS[0], RATIOS[0])
    beyond = _edge(fails, RATIOS[last], RATIOS[last + 1]) if last + 1 < len(RATIOS) else (RATIOS[-1], RATIOS[-1])
    return Range(outside[0], beyond[0], fails(outside[1]), fails(beyond[1]))


def committee_map(
    economy: Economy, honesties: Sequence[float], committees: Sequence[int]
) -> list[list[tuple[str, ...]]]:
    """The conditions that fail at each honesty (rows) and size of the first committee (columns)."""
    return [[unmet(with_committee(economy, honesty, seats)) for seats in committees] for honesty in honesties]


def least_honesty(economy: Economy, seats: int) -> float | None:
    """The smallest honest share at which all conditions hold for a first committee of `seats`; `None` for none."""

    def fails(honesty: float) -> tuple[str, ...]:
        return unmet(with_committee(economy, honesty, seats))

    return None if fails(1.0) else _edge(fails, 1.0, 0.0)[0]


def largest_gas_price(economy: Economy) -> float:
    """The price of gas up to which all conditions hold; infinite if gas does not matter, 0 if they never hold."""

    def fails(price: float) -> tuple[str, ...]:
        return unmet(replace(economy, workload=replace(economy.workload, gas_price=price)))

    if fails(0.0):
        return 0.0
    return math.inf if not fails(DEAREST_GAS) else _edge(fails, 0.0, DEAREST_GAS)[0]


def _edge(fails: Callable[[float], tuple[str, ...]], inside: float, outside: float) -> tuple[float, float]:
    """The edge by bisection: two neighbouring points, the last inside and the first outside."""
    while abs(outside - inside) > PRECISION * max(inside, outside):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if fails(middle) else (middle, outside)
    return inside, outside
