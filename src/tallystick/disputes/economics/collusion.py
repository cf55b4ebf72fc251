"""What a cheat can buy: a friend's accusation, a challenger's silence, a committee."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tallystick.disputes.economics.committee import sizes, wrong_rounds
from tallystick.disputes.economics.money import appeal_fees, bond_at_risk, lost_accusation, reward
from tallystick.disputes.economics.workload import Economy


def kept_by_self_accusation(economy: Economy) -> float:
    """What a prover keeps that is accused by a friend before anybody else: r·B."""
    return economy.rules.prover_bond - bond_at_risk(economy.rules)


def watchers_beyond_bribes(economy: Economy) -> int:
    """Among how many independent challengers that know of a cheat their silence costs more than a conviction.

    Silence costs the reward, for each of them; a conviction costs what it does with a friend's help, and the revenue.
    """
    pay = reward(economy.rules)
    return math.floor((bond_at_risk(economy.rules) + economy.workload.revenue) / pay) + 1 if pay else 0


def guilty_appeals(economy: Economy) -> Iterator[tuple[float, float]]:
    """For each last appeal of a party that was rightly found at fault: (expected cost, expected gain).

    It appeals until that round, and wins if that round errs: then it keeps bond and revenue, or is paid the reward.
    That the innocent party could appeal in its turn is left out.
    """
    rules = economy.rules
    stake = max(rules.prover_bond + economy.workload.revenue, reward(rules) + lost_accusation(rules))
    errs, paid = wrong_rounds(economy), 0.0
    for number, fee in enumerate(appeal_fees(economy), 1):
        paid += fee
        chance = errs[number] * (1 - economy.workload.certain)
        yield paid + (1 - chance) * number * rules.appeal_bond, chance * stake


def worst_guilty_appeal(economy: Economy) -> tuple[float, float]:
    """The appeal of a guilty party with the smallest loss, (expected cost, expected gain)."""
    return min(guilty_appeals(economy), key=lambda each: each[0] - each[1], default=(0.0, 0.0))


def worst_just_appeal(economy: Economy) -> tuple[float, float]:
    """What an innocent party pays for appeals after a wrong first ruling, and what it saves; the party that saves less.

    All appeals in a row; their fees are lost even if it wins, their bonds only if the last round errs too.
    """
    rules, fees = economy.rules, appeal_fees(economy)
    errs = wrong_rounds(economy)[-1]
    stake = min(rules.prover_bond + economy.workload.revenue, reward(rules) + lost_accusation(rules))
    return sum(fees) + errs * len(fees) * rules.appeal_bond, (1 - errs) * stake


def bribes_needed(economy: Economy) -> int:
    """The votes that decide the last round."""
    last = (sizes(economy.rules, economy.workload.pool) or (0,))[-1]
    return last // 2 + 1


def least_stings(economy: Economy) -> float:
    """The share of offers to buy a vote that must come from the planter for a bought last round to cost what it saves.

    A bought vote loses its stake in a planted case and nothing in another: it is worth (share of stings) × stake.
    """
    price = bribes_needed(economy) * economy.rules.stake
    return (economy.rules.prover_bond + economy.workload.revenue) / price if price else math.inf


def lazy_vote_loss(economy: Economy) -> float:
    """What a member loses in expectation by a vote without looking: P(planted) · P(wrong there) · stake."""
    work = economy.workload
    return work.planted_cases * work.lazy_error * economy.rules.stake
