"""The conditions: the defaults meet all of them, each can fail, and each threshold is where it says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from research.economics_page import sampled_detection
from tallystick.core.canonical_json import encode
from tallystick.core.errors import UsageError
from tallystick.disputes.economics.conditions import (
    MARGIN,
    Condition,
    bond_range,
    conditions,
    least_honesty,
    sybils,
    unmet,
    with_bond,
    with_committee,
)
from tallystick.disputes.economics.costs import (
    ClaimKind,
    Economy,
    bond_at_risk,
    bribes_needed,
    caught,
    cheating_risk,
    least_audit_probability,
    least_bond,
    least_fault_rate,
    least_stings,
    least_subsidy,
    looking_pay,
    sizes,
    watchers_beyond_bribes,
    wrong_majority,
    wrong_rounds,
)
from tallystick.disputes.economics.report import regions, report

REFERENCE = Economy()
MEMBERS = (3, 5, 7, 9, 15, 21, 51, 101)
CORRUPT_MAJORITY = {
    0.1: (".028", ".0086", ".0027", "8.9e-4", "3.4e-5", "1.4e-6", "2e-13", "1.2e-24"),
    0.2: (".10", ".058", ".033", ".020", ".0042", "9.7e-4", "8.1e-7", "8.4e-12"),
    0.3: (".22", ".16", ".13", ".099", ".050", ".026", ".0014", "1.3e-5"),
    0.4: (".35", ".32", ".29", ".27", ".21", ".17", ".074", ".021"),
}
"""P(corrupt majority) of so many members, by the corrupt fraction, as published with the statistics of this project."""


def looking_gain(economy: Economy) -> float:
    """The expected gain of a challenger that recomputes a claim."""
    return looking_pay(economy) - economy.workload.cost_verify


def changed(rules: dict[str, Any] | None = None, **workload: Any) -> Economy:
    """The reference economy with some of its numbers changed."""
    return Economy(REFERENCE.rules.model_copy(update=rules or {}), replace(REFERENCE.workload, **workload))


@pytest.mark.parametrize("corrupt", sorted(CORRUPT_MAJORITY))
def test_corrupt_majorities_are_as_published_to_each_printed_digit(corrupt: float) -> None:
    for seats, printed in zip(MEMBERS, CORRUPT_MAJORITY[corrupt], strict=True):
        assert as_precise(wrong_majority(seats, 1 - corrupt), printed) == float(printed)


def as_precise(value: float, printed: str) -> float:
    """`value` with as many significant digits as were printed."""
    digits = printed.partition("e")[0].replace(".", "").lstrip("0")
    return float(f"{value:.{len(digits) - 1}e}")


def test_a_large_pool_is_the_limit_of_finite_ones() -> None:
    finite = [wrong_majority(7, 0.8, pool) for pool in (10, 100, 1000, 100_000)]
    assert finite == sorted(finite)
    assert finite[-1] == pytest.approx(wrong_majority(7, 0.8), rel=1e-3)
    assert wrong_majority(7, 0.8, 10) == 0.0, "two of ten cannot be four of seven"


@pytest.mark.parametrize(("honesty", "expected"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
@pytest.mark.parametrize("seats", [1, 7, 1023])
def test_the_ends_of_honesty(seats: int, honesty: float, expected: float) -> None:
    assert wrong_majority(seats, honesty) == pytest.approx(expected, rel=1e-9)


def test_the_default_rules_meet_every_condition_for_the_reference_workload() -> None:
    assert unmet(REFERENCE) == ()


def test_the_defaults_do_not_stand_at_the_edge() -> None:
    """They hold for twice the saving, half the audits, and with 30 % of the members corrupt."""
    assert unmet(changed(cost_cheat=0, cost_honest=100_000)) == ()
    assert unmet(changed(audit_probability=0.1)) == ()
    assert unmet(changed(honesty=0.7)) == ()
    assert unmet(changed(pool=40)) == ()


FAILING: dict[str, Economy] = {
    "honest work pays": changed(revenue=100_000),
    "cheating does not pay": changed(audit_probability=0.02),
    "cheating does not pay, accused by a friend": changed({"reward": 1000}),
    "being right pays": changed(cost_challenge=600_000),
    "looking pays": changed(planted=0.0),
    "a false challenge does not pay": changed({"challenger_bond": 0, "vote_fee": 0}, cost_vote=0),
    "a falsely challenged prover is compensated": changed({"challenger_bond": 19_000}),
    "100 challenges can be answered in time": changed(answer_seconds=2000),
    "disputes rarely end wrongly": changed(honesty=0.65),
    "appealing a wrong ruling pays": changed({"vote_fee": 20_000}),
    "appealing a right ruling does not pay": changed({"vote_fee": 0, "appeal_bond": 0}, cost_vote=0),
    "a vote's fee pays its work": changed(cost_vote=2_001),
    "voting without looking does not pay": changed(planted_cases=0.002),
}


BESIDES = {
    "cheating does not pay": "cheating does not pay, accused by a friend",
    "being right pays": "looking pays",
    "a false challenge does not pay": "a falsely challenged prover is compensated",
    "disputes rarely end wrongly": "appealing a right ruling does not pay",
}
"""What fails together with the one that is meant."""


def test_there_is_an_example_of_each_condition_not_met() -> None:
    assert tuple(FAILING) == tuple(each.name for each in conditions(REFERENCE))


@pytest.mark.parametrize("name", list(FAILING), ids=lambda name: name.replace(" ", "-"))
def test_each_condition_can_fail(name: str) -> None:
    assert {*unmet(FAILING[name])} == {name, BESIDES.get(name, name)}


@pytest.mark.parametrize(
    ("value", "relation", "met"),
    [(1.0, ">", False), (1.1, ">", True), (1.0, "≥", True), (0.9, "≥", False), (1.0, "≤", True), (1.1, "≤", False)],
)
def test_relations(value: float, relation: Any, met: bool) -> None:
    assert Condition("name", value, 1.0, relation).is_met is met


@pytest.mark.parametrize("audit", [0.05, 0.1, 0.2])
def test_cheating_stops_to_pay_at_the_least_bond(audit: float) -> None:
    edge = least_bond(changed(audit_probability=audit))
    for factor, pays in ((0.999, True), (1.001, False)):
        economy = changed({"prover_bond": round(edge * factor)}, audit_probability=audit)
        assert (economy.workload.saving > cheating_risk(economy, bond_at_risk(economy.rules))) is pays


def test_cheating_stops_to_pay_at_the_least_audit_probability() -> None:
    edge = least_audit_probability(REFERENCE)
    for factor, pays in ((0.999, True), (1.001, False)):
        economy = changed(audit_probability=edge * factor)
        assert (economy.workload.saving > cheating_risk(economy, bond_at_risk(economy.rules))) is pays


def test_thresholds_that_nothing_reaches_are_infinite() -> None:
    assert least_bond(changed(audit_probability=0)) == math.inf
    assert least_bond(changed({"reward": 1000})) == math.inf
    assert least_bond(changed(cost_cheat=100_000)) == 0.0
    assert least_audit_probability(changed(detection=0)) == math.inf
    assert least_fault_rate(changed(cost_challenge=600_000)) == math.inf


def test_looking_begins_to_pay_at_the_least_fault_rate() -> None:
    edge = least_fault_rate(REFERENCE)
    assert looking_gain(changed(planted=edge * 0.999)) < 0 < looking_gain(changed(planted=edge * 1.001))


def test_a_subsidy_pays_for_looking_where_nobody_ever_cheats() -> None:
    honest = changed(planted=0)
    assert looking_gain(honest) + least_subsidy(honest) == 0
    assert least_subsidy(REFERENCE, least_fault_rate(REFERENCE) * 1.001) == 0


@pytest.mark.parametrize("faulty", [1, 2, 5, 10, 50, 100, 500, 999, 1000])
def test_cheating_in_a_part_of_the_records_pays_no_more_than_in_all(faulty: int) -> None:
    """A cheat in a share x of N records saves x·ΔC and shows with probability 1 − C(N − xN, k) / C(N, k) ≥ x."""
    assert sampled_detection(1000, faulty, 40) >= faulty / 1000 - 1e-12
    work = REFERENCE.workload
    chance = caught(REFERENCE) * sampled_detection(1000, faulty, 40)
    assert work.saving * faulty / 1000 < chance * (bond_at_risk(REFERENCE.rules) + work.revenue)


@pytest.mark.parametrize("challenges", range(1, 101))
def test_an_honest_prover_is_paid_for_any_number_of_false_challenges(challenges: int) -> None:
    spam = sybils(REFERENCE, challenges)
    assert spam.won >= MARGIN * spam.imposed
    assert spam.lost > spam.won
    assert spam.answering_seconds <= REFERENCE.rules.clock


def test_a_challenger_bond_below_the_cost_of_answers_does_not_pay_for_them() -> None:
    spam = sybils(FAILING["a falsely challenged prover is compensated"], 100)
    assert spam.won < MARGIN * spam.imposed


def test_bribes() -> None:
    assert bribes_needed(REFERENCE) == 16
    assert least_stings(REFERENCE) * 16 * REFERENCE.rules.stake == pytest.approx(1_130_000)
    assert watchers_beyond_bribes(REFERENCE) == 2
    assert watchers_beyond_bribes(changed({"reward": 100})) > 2
    assert watchers_beyond_bribes(changed({"reward": 0})) == 0
    assert least_stings(changed({"stake": 0})) == math.inf


def test_a_pool_without_members_rules_wrongly() -> None:
    assert sizes(REFERENCE.rules, 6) == (5,)
    assert wrong_rounds(changed({"committee": 2}, pool=1)) == pytest.approx((1.0,))
    assert "disputes rarely end wrongly" in unmet(changed(pool=1, honesty=0.9))


def test_the_region_begins_at_the_least_bond() -> None:
    found = bond_range(REFERENCE, 0.1)
    assert found is not None
    assert found.fails_below == ("cheating does not pay, accused by a friend",)
    assert found.least * 60_000 == pytest.approx(least_bond(changed(audit_probability=0.1)), rel=1e-3)
    assert found.fails_above == ("honest work pays",)


@pytest.mark.parametrize("audit", [0.02, 0.1, 0.5])
def test_the_region_of_bonds_is_one_piece(audit: float) -> None:
    found = bond_range(REFERENCE, audit)
    assert found is not None
    inside = [found.least * (found.largest / found.least) ** (step / 20) for step in range(21)]
    assert not any(unmet(with_bond(REFERENCE, audit, ratio)) for ratio in inside)
    assert unmet(with_bond(REFERENCE, audit, found.least * 0.99))
    assert unmet(with_bond(REFERENCE, audit, found.largest * 1.01))


def test_without_audits_no_bond_is_enough() -> None:
    assert bond_range(REFERENCE, 0.0) is None


@pytest.mark.parametrize("seats", [1, 7, 31])
def test_the_region_of_committees_begins_at_the_least_honesty(seats: int) -> None:
    edge = least_honesty(REFERENCE, seats)
    assert edge is not None
    assert not unmet(with_committee(REFERENCE, edge, seats))
    assert unmet(with_committee(REFERENCE, edge - 0.001, seats))


def test_a_committee_whose_appeals_cost_more_than_they_save_is_outside() -> None:
    assert least_honesty(REFERENCE, 63) is None
    assert unmet(with_committee(REFERENCE, 1.0, 63)) == ("appealing a wrong ruling pays",)


@pytest.mark.parametrize(
    "fields",
    [{"honesty": 1.01}, {"honesty": -0.1}, {"detection": math.nan}, {"revenue": math.inf}, {"cost_honest": 1e300}],
    ids=str,
)
def test_a_workload_out_of_range_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(fields))):
        ClaimKind(**fields)  # type: ignore[arg-type]


EXTREMES = {
    "reference": REFERENCE,
    "nothing audited": changed(audit_probability=0, cost_honest=0, cost_cheat=0),
    "three members": changed(pool=3, sybils=0),
    "all at their ends": changed({"committee": 63, "appeals": 4}, honesty=0.5, records=2**53 - 1, capital_rate=1e15),
}


@pytest.mark.parametrize("name", EXTREMES, ids=lambda name: name.replace(" ", "-"))
def test_the_report_is_json_for_any_economy(name: str) -> None:
    assert encode({**report(EXTREMES[name]), **regions(EXTREMES[name])})
