"""Everything that follows from rules and a workload, as one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tallystick.commitments.encoding import Json
from tallystick.disputes.economics import challenging, collusion, committee, deterrence, money, region, spam
from tallystick.disputes.economics.conditions import conditions, rounded
from tallystick.disputes.economics.workload import Economy

RULES: Final = ("prover_bond", "challenger_bond", "appeal_bond", "stake", "vote_fee", "reward", "committee", "appeals")
CHALLENGES: Final = (1, 10, 100)


def report(economy: Economy) -> dict[str, Json]:
    """The conditions with their values, the figures behind them, and the costs of committees, spam and delays."""
    return {
        "rules": {name: getattr(economy.rules, name) for name in RULES},
        "workload": asdict(economy.workload),
        "met": all(each.is_met for each in conditions(economy)),
        "conditions": [each.to_json() for each in conditions(economy)],
        "figures": {name: _plain(value) for name, value in figures(economy).items()},
        "committees": _committees(economy),
        "spam": [_rounded(asdict(spam.sybils(economy, count))) for count in CHALLENGES],
        "delays": [_rounded(asdict(each)) for each in spam.delays(economy)],
    }


def figures(economy: Economy) -> dict[str, float]:
    """The thresholds of the design, its costs, and what a cheat can buy; each by a sentence that names it."""
    cheats, looks = challenging.equilibrium(economy)
    return {
        "a cheat is convicted with probability": deterrence.caught(economy),
        "least prover's bond": deterrence.least_bond(economy),
        "least audit probability": deterrence.least_audit_probability(economy),
        "a convicted prover with a friend keeps": collusion.kept_by_self_accusation(economy),
        "a winning challenger is paid": money.reward(economy.rules),
        "least share of claims with a paid fault": challenging.least_fault_rate(economy),
        "least subsidy per recomputed claim without faults": challenging.least_subsidy(economy),
        "planted faults cost per claim": challenging.planting(economy),
        "mandatory audits cost, of an honest run": challenging.mandatory_audits(economy),
        "without planting, provers cheat with probability": cheats,
        "without planting, challengers look with probability": looks,
        "watchers at which silence cannot be bought": collusion.watchers_beyond_bribes(economy),
        "votes that decide the last round": collusion.bribes_needed(economy),
        "least share of stings among bribes": collusion.least_stings(economy),
        "largest price of gas": region.largest_gas_price(economy),
    }


def regions(economy: Economy) -> dict[str, Json]:
    """The two maps of the region, as tables."""
    committees = region.committee_map(economy, region.HONESTIES, region.COMMITTEES)
    return {
        "bonds": [_bonds(economy, audit) for audit in region.AUDIT_PROBABILITIES],
        "committees": [
            {
                "honesty": honesty,
                "unmet": {str(seats): list(names) for seats, names in zip(region.COMMITTEES, row, strict=True)},
            }
            for honesty, row in zip(region.HONESTIES, committees, strict=True)
        ],
    }


def _bonds(economy: Economy, audit: float) -> dict[str, Json]:
    found = region.bond_range(economy, audit)
    if found is None:
        return {"audit_probability": audit, "least": None, "largest": None}
    ends: dict[str, Json] = {"fails_below": [*found.fails_below], "fails_above": [*found.fails_above]}
    return {"audit_probability": audit, "least": rounded(found.least), "largest": rounded(found.largest), **ends}


def _committees(economy: Economy) -> list[Json]:
    seats = committee.sizes(economy.rules, economy.workload.pool)
    return [{"seats": m, "wrong": rounded(w)} for m, w in zip(seats, committee.wrong_rounds(economy), strict=False)]


def _rounded(fields: dict[str, Any]) -> dict[str, Json]:
    return {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Json:
    return rounded(value) if isinstance(value, float) else value
