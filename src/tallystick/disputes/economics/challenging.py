"""When looking for faults pays: the verifier's dilemma, planted faults, subsidies and mandatory audits."""

from __future__ import annotations

import math

from tallystick.disputes.economics.committee import wrong, wrong_rounds
from tallystick.disputes.economics.money import appeal_fees, bond_at_risk, lost_accusation, reward
from tallystick.disputes.economics.workload import Economy


def accusing_gain(economy: Economy) -> float:
    """What a challenger earns in expectation from a dispute in which it is right.

    q·reward − (1 − q)·(bond + fees) − own work − payments for appeals, where q is the probability of a right ruling.
    Appeal bonds that the other side loses are left out, because whether to appeal is the other side's choice.
    """
    chance = wrong(economy)
    won, lost = reward(economy.rules), lost_accusation(economy.rules)
    return (1 - chance) * won - chance * lost - economy.workload.challenging - appeals_expected(economy)


def appeals_expected(economy: Economy) -> float:
    """What a party that is right expects to pay for appeals.

    Each appeal follows a wrong round. Its fee is always lost; its bond is lost if the last round is wrong too.
    """
    rounds, fees = wrong_rounds(economy), appeal_fees(economy)
    bond = economy.rules.appeal_bond
    share = 1 - economy.workload.certain
    return share * sum(before * (fee + rounds[-1] * bond) for before, fee in zip(rounds, fees, strict=False))


def looking_gain(economy: Economy) -> float:
    """The expected gain of a challenger that recomputes a claim: φ·d·(gain of a dispute) − C_verify."""
    return looking_pay(economy) - economy.workload.cost_verify


def looking_pay(economy: Economy) -> float:
    """φ·d·(gain of a dispute), before the cost of recomputing."""
    work = economy.workload
    return work.paid_faults * work.detection * accusing_gain(economy)


def least_fault_rate(economy: Economy) -> float:
    """The share of claims with a paid fault above which looking pays; above 1 if no share is enough."""
    gain = economy.workload.detection * accusing_gain(economy)
    return economy.workload.cost_verify / gain if gain > 0 else math.inf


def least_subsidy(economy: Economy, faults: float = 0.0) -> float:
    """The payment per recomputed claim, whatever is found, at which looking pays if a share `faults` is paid for."""
    gain = faults * economy.workload.detection * accusing_gain(economy)
    return max(0.0, economy.workload.cost_verify - gain)


def mandatory_audits(economy: Economy) -> float:
    """The cost of audits per claim, as a share of the cost of an honest run, if the customer pays for them."""
    work = economy.workload
    paid = work.audit_probability * work.cost_verify
    return paid / work.cost_honest if work.cost_honest else math.inf


def planting(economy: Economy) -> float:
    """The treasury's cost of planted faults per claim: the rewards of those that are found; bonds come back."""
    work = economy.workload
    return work.audit_probability * work.planted * work.detection * (1 - wrong(economy)) * reward(economy.rules)


def equilibrium(economy: Economy) -> tuple[float, float]:
    """The equilibrium (φ*, a*) without planted faults: how often a prover cheats, and how often a challenger looks.

    An inspection game (Dresher 1962; Avenhaus, von Stengel, Zamir 2002). The challenger looks so often that the prover
    is indifferent to cheating, a*·d·q·(bond + R) = ΔC. The prover cheats so often that the challenger is indifferent
    to looking, φ*·d·(gain of a dispute) = C_verify. Each is at most 1.
    """
    work = economy.workload
    loss = work.detection * (1 - wrong(economy)) * (bond_at_risk(economy.rules) + work.revenue)
    looks = work.saving / loss if loss else math.inf
    return min(1.0, least_fault_rate(economy)), min(1.0, looks)
