"""What a cheat can buy: a friend's accusation, a challenger's silence, a committee."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tallystick.disputes.economics.committee import sizes, wrong_rounds
from tallystick.disputes.economics.money import appeal_fees, bond_at_risk, lost_accusation, reward
from tallystick.disputes.economics.workload import Economy


def kept_by_self_accusation(economy: Economy) -> float:
    """What a prover keeps of its bond if a friend accuses it first: r·B."""
    return economy.rules.prover_bond - bond_at_risk(economy.rules)


def watchers_beyond_bribes(economy: Economy) -> int:
    """The number of independent challengers that know of a cheat at which their silence costs more than a conviction.

    Silence costs one reward for each of them. A conviction costs the bond at risk, with a friend's help, and the
    revenue.
    """
    pay = reward(economy.rules)
    return math.floor((bond_at_risk(economy.rules) + economy.workload.revenue) / pay) + 1 if pay else 0


def guilty_appeals(economy: Economy) -> Iterator[tuple[float, float]]:
    """For each last appeal of a party that was rightly found at fault: (expected cost, expected gain).

    The party appeals until that round, and wins if that round errs: then it keeps bond and revenue, or is paid the
    reward. Later appeals of the innocent party are left out.
    """
    rules = economy.rules
    stake = max(rules.prover_bond + economy.workload.revenue, reward(rules) + lost_accusation(rules))
    errs, paid = wrong_rounds(economy), 0.0
    for number, fee in enumerate(appeal_fees(economy), 1):
        paid += fee
        chance = errs[number] * (1 - economy.workload.certain)
        yield paid + (1 - chance) * number * rules.appeal_bond, chance * stake


def worst_guilty_appeal(economy: Economy) -> tuple[float, float]:
    """The guilty party's appeal with the smallest expected loss: (expected cost, expected gain)."""
    return min(guilty_appeals(economy), key=lambda each: each[0] - each[1], default=(0.0, 0.0))


def worst_just_appeal(economy: Economy) -> tuple[float, float]:
    """(Expected cost, expected gain) of an innocent party that appeals a wrong first ruling; the party with less gain.

    It makes all appeals in a row. Their fees are lost even if it wins, their bonds only if the last round errs too.
    """
    rules, fees = economy.rules, appeal_fees(economy)
    errs = wrong_rounds(economy)[-1]
    stake = min(rules.prover_bond + economy.workload.revenue, reward(rules) + lost_accusation(rules))
    return sum(fees) + errs * len(fees) * rules.appeal_bond, (1 - errs) * stake


def bribes_needed(economy: Economy) -> int:
    """The number of votes that decide the last round."""
    last = (sizes(economy.rules, economy.workload.pool) or (0,))[-1]
    return last // 2 + 1


def least_stings(economy: Economy) -> float:
    """The share of stings among offers to buy votes at which a bought last round costs as much as it saves.

    A sting is an offer that the planter makes. A bought vote loses its stake in a planted case and nothing in another
    case, so its price is (share of stings) × stake.
    """
    price = bribes_needed(economy) * economy.rules.stake
    return (economy.rules.prover_bond + economy.workload.revenue) / price if price else math.inf


def lazy_vote_loss(economy: Economy) -> float:
    """The expected loss of a member that votes without looking: P(planted) · P(wrong there) · stake."""
    work = economy.workload
    return work.planted_cases * work.lazy_error * economy.rules.stake
