"""When cheating costs more than it saves."""

from __future__ import annotations

import math

from tallystick.disputes.economics.committee import wrong
from tallystick.disputes.economics.money import bond_at_risk
from tallystick.disputes.economics.workload import YEAR, Economy


def caught(economy: Economy) -> float:
    """P(a cheat is convicted) = audit probability × detection × P(ruling right)."""
    work = economy.workload
    return work.audit_probability * work.detection * (1 - wrong(economy))


def honest_profit(economy: Economy) -> float:
    """An honest prover's profit per claim: revenue − cost − gas − interest on the bond until the window ends."""
    rules, work = economy.rules, economy.workload
    bound = rules.prover_bond * work.capital_rate * rules.challenge_window / YEAR
    return work.revenue - work.cost_honest - work.gas_claim * work.gas_price - bound


def cheating_gain(economy: Economy, bond: float) -> float:
    """What a cheat earns more than an honest prover if a conviction takes `bond` and the revenue: ΔC − p·(bond + R)."""
    return economy.workload.saving - cheating_risk(economy, bond)


def cheating_risk(economy: Economy, bond: float) -> float:
    """The expected loss of a cheat, p·(bond + R)."""
    return caught(economy) * (bond + economy.workload.revenue)


def least_bond(economy: Economy) -> float:
    """The bond above which a cheat whose friend accuses it does not pay: (ΔC / p − R) / (1 − r); infinite for p = 0."""
    chance, kept = caught(economy), 1 - economy.rules.reward / 1000
    missing = (economy.workload.saving / chance if chance else math.inf) - economy.workload.revenue
    return 0.0 if missing <= 0 else missing / kept if kept else math.inf


def least_audit_probability(economy: Economy) -> float:
    """The audit probability above which a cheat whose friend accuses it does not pay; above 1 if none is enough."""
    work = economy.workload
    at_certainty = work.detection * (1 - wrong(economy)) * (bond_at_risk(economy.rules) + work.revenue)
    return work.saving / at_certainty if at_certainty else math.inf


def sampled_detection(records: int, faulty: int, samples: int) -> float:
    """P(a sample without repetition holds a faulty record) = 1 − C(N − b, k) / C(N, k)."""
    return 1 - math.comb(records - faulty, samples) / math.comb(records, samples)
