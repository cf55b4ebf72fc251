"""Each expectation of the economics page against draws: a mean of n draws lies within five standard errors."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from research.economics_page import (
    sampled_detection,
    wrong_if_only_the_honest_appeal,
    wrong_if_the_honest_cannot_appeal,
)
from tallystick.disputes.economics.conditions import (
    compensation,
    delays,
    false_challenge_cost,
    false_challenge_prize,
    imposed,
    sybils,
)
from tallystick.disputes.economics.costs import (
    DEFAULT_RULES,
    YEAR,
    ClaimKind,
    Economy,
    accusing_gain,
    appeal_fees,
    bond_at_risk,
    caught,
    cheating_risk,
    equilibrium,
    guilty_appeals,
    lazy_vote_loss,
    looking_pay,
    lost_accusation,
    planting,
    reward,
    sizes,
    worst_just_appeal,
    wrong,
    wrong_majority,
    wrong_rounds,
)

Draws: TypeAlias = npt.NDArray[np.float64]
N = 500_000
SHAKY = Economy(
    DEFAULT_RULES.model_copy(update={"committee": 3}), ClaimKind(honesty=0.65, certain=0.25, detection=0.9, planted=0.3)
)
"""An economy in which everything that can go wrong often does, so that its share is seen in the draws."""


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_250_117)


def agrees(draws: Draws, expected: float) -> bool:
    """Whether the mean of the draws lies within five standard errors of `expected`."""
    return abs(float(draws.mean()) - expected) <= 5 * float(draws.std()) / len(draws) ** 0.5


def rounds_err(rng: np.random.Generator, economy: Economy, count: int = N) -> npt.NDArray[np.bool_]:
    """For each dispute and round, whether at least half of a committee is not honest, BOOL[rounds, count]."""
    seats = sizes(economy.rules)
    return np.stack([2 * rng.binomial(m, 1 - economy.workload.honesty, count) >= m for m in seats])


def ends_wrongly(rng: np.random.Generator, economy: Economy, count: int = N) -> npt.NDArray[np.bool_]:
    """Whether each dispute ends wrongly: a theorem decides some, and the last committee the others."""
    judged = rng.random(count) >= economy.workload.certain
    return np.asarray(judged & rounds_err(rng, economy, count)[-1], np.bool_)


def convicted(rng: np.random.Generator, economy: Economy, count: int = N) -> npt.NDArray[np.bool_]:
    """Whether each cheat is convicted."""
    work = economy.workload
    seen = (rng.random(count) < work.audit_probability) & (rng.random(count) < work.detection)
    return np.asarray(seen & ~ends_wrongly(rng, economy, count), np.bool_)


@pytest.mark.parametrize(("seats", "honesty"), [(3, 0.6), (7, 0.8), (8, 0.7), (31, 0.6)])
def test_a_large_pool(rng: np.random.Generator, seats: int, honesty: float) -> None:
    wrongly = 2 * rng.binomial(seats, 1 - honesty, N) >= seats
    assert agrees(wrongly.astype(float), wrong_majority(seats, honesty))


@pytest.mark.parametrize(("seats", "pool", "honest"), [(3, 5, 3), (7, 20, 13), (15, 40, 24)])
def test_a_pool_without_repetition(rng: np.random.Generator, seats: int, pool: int, honest: int) -> None:
    wrongly = 2 * rng.hypergeometric(pool - honest, honest, seats, N) >= seats
    assert agrees(wrongly.astype(float), wrong_majority(seats, honest / pool, pool))


def test_who_appeals_decides_how_often_a_dispute_ends_wrongly(rng: np.random.Generator) -> None:
    errs, rounds = rounds_err(rng, SHAKY), wrong_rounds(SHAKY)
    assert agrees(errs[-1].astype(float), rounds[-1])
    assert agrees(errs.any(axis=0).astype(float), wrong_if_the_honest_cannot_appeal(rounds))
    assert agrees(errs.all(axis=0).astype(float), wrong_if_only_the_honest_appeal(rounds))
    assert agrees(ends_wrongly(rng, SHAKY).astype(float), wrong(SHAKY))


@pytest.mark.parametrize("with_a_friend", [False, True])
def test_what_a_cheat_gains(rng: np.random.Generator, with_a_friend: bool) -> None:
    work, rules = SHAKY.workload, SHAKY.rules
    bond = bond_at_risk(rules) if with_a_friend else float(rules.prover_bond)
    falls = convicted(rng, SHAKY)
    cheating = np.where(falls, -bond, work.revenue) - work.cost_cheat
    honest = work.revenue - work.cost_honest
    assert agrees(falls.astype(float), caught(SHAKY))
    assert agrees(cheating - honest, SHAKY.workload.saving - cheating_risk(SHAKY, bond))


def accused(rng: np.random.Generator, economy: Economy, count: int = N) -> Draws:
    """What a challenger that is right gains in each dispute; both sides appeal whenever they lose."""
    rules, errs = economy.rules, rounds_err(rng, economy, count)
    judged = rng.random(count) >= economy.workload.certain
    lost = judged & errs[-1]
    gains = np.where(lost, -lost_accusation(rules), reward(rules)) - economy.workload.challenging
    for before, fee in zip(errs[:-1], appeal_fees(economy), strict=True):
        gains -= np.where(judged & before, fee + rules.appeal_bond * lost, 0.0)
    return np.asarray(gains, np.float64)


def test_what_a_challenger_that_is_right_gains(rng: np.random.Generator) -> None:
    assert agrees(accused(rng, SHAKY), accusing_gain(SHAKY))


def looked(rng: np.random.Generator, economy: Economy, faulty: npt.NDArray[np.bool_]) -> Draws:
    """What a challenger gains that recomputes claims of which some are faulty."""
    found = faulty & (rng.random(len(faulty)) < economy.workload.detection)
    return np.asarray(np.where(found, accused(rng, economy, len(faulty)), 0.0) - economy.workload.cost_verify)


def test_what_looking_gains(rng: np.random.Generator) -> None:
    work = replace(SHAKY.workload, fault_rate=0.2)
    faulty = (rng.random(N) < work.planted) | (rng.random(N) < work.fault_rate)
    assert agrees(
        looked(rng, replace(SHAKY, workload=work), faulty),
        looking_pay(replace(SHAKY, workload=work)) - work.cost_verify,
    )


def test_nobody_gains_by_changing_in_equilibrium(rng: np.random.Generator) -> None:
    cheats, looks = equilibrium(SHAKY)
    assert 0 < cheats < 1
    assert 0 < looks < 1
    assert agrees(looked(rng, SHAKY, rng.random(N) < cheats), 0.0)
    watched = replace(SHAKY, workload=replace(SHAKY.workload, audit_probability=looks))
    work = watched.workload
    cheating = np.where(convicted(rng, watched), -bond_at_risk(watched.rules), work.revenue) - work.cost_cheat
    assert agrees(cheating - (work.revenue - work.cost_honest), 0.0)


def test_what_planted_faults_cost(rng: np.random.Generator) -> None:
    planted = rng.random(N) < SHAKY.workload.planted
    assert agrees(np.where(planted & convicted(rng, SHAKY), reward(SHAKY.rules), 0.0), planting(SHAKY))


def test_what_a_false_challenge_costs_and_wins(rng: np.random.Generator) -> None:
    wins = ends_wrongly(rng, SHAKY)
    assert agrees(np.where(wins, 0.0, lost_accusation(SHAKY.rules)), false_challenge_cost(SHAKY))
    assert agrees(np.where(wins, reward(SHAKY.rules), 0.0), false_challenge_prize(SHAKY))


def test_what_a_prover_gains_by_a_false_challenge(rng: np.random.Generator) -> None:
    """Its answers, and the price of waiting, are no chance; it appeals each wrong round."""
    rules, work, errs = SHAKY.rules, SHAKY.workload, rounds_err(rng, SHAKY)
    fought = next(each for each in delays(SHAKY) if each.appeals == 0)
    judged = rng.random(N) >= work.certain
    lost = judged & errs[-1]
    stake = rules.prover_bond + work.revenue
    gains = np.where(lost, -stake, compensation(SHAKY, fought)) - float(work.cost_answer)
    for before, fee in zip(errs[:-1], appeal_fees(SHAKY), strict=True):
        gains -= np.where(judged & before, fee + rules.appeal_bond * lost, 0.0)
    gains -= stake * work.capital_rate * fought.seconds / YEAR
    assert agrees(gains, compensation(SHAKY, fought) - imposed(SHAKY, fought))


@pytest.mark.parametrize("challenges", [1, 10, 100])
def test_how_often_one_of_many_false_challenges_wins(rng: np.random.Generator, challenges: int) -> None:
    economy = replace(SHAKY, workload=replace(SHAKY.workload, honesty=0.8))
    wins = np.stack([ends_wrongly(rng, economy, 20_000) for _ in range(challenges)]).any(axis=0)
    assert agrees(wins.astype(float), sybils(economy, challenges).wrongly_convicted)


def test_what_a_guilty_party_pays_and_gains_by_appeals(rng: np.random.Generator) -> None:
    rules, work, paid = SHAKY.rules, SHAKY.workload, 0.0
    for number, (cost, gain) in enumerate(guilty_appeals(SHAKY), 1):
        paid += appeal_fees(SHAKY)[number - 1]
        errs = (rng.random(N) >= work.certain) & rounds_err(rng, SHAKY)[number]
        assert agrees(paid + np.where(errs, 0.0, number * rules.appeal_bond), cost)
        assert agrees(np.where(errs, rules.prover_bond + work.revenue, 0.0), gain)


def test_what_an_innocent_party_pays_and_saves_by_appeals(rng: np.random.Generator) -> None:
    errs, fees = rounds_err(rng, SHAKY)[-1], appeal_fees(SHAKY)
    cost, gain = worst_just_appeal(SHAKY)
    assert agrees(sum(fees) + np.where(errs, len(fees) * SHAKY.rules.appeal_bond, 0.0), cost)
    stake = reward(SHAKY.rules) + lost_accusation(SHAKY.rules)
    assert stake < SHAKY.rules.prover_bond
    assert agrees(np.where(errs, 0.0, stake), gain)


def test_what_a_vote_without_looking_loses(rng: np.random.Generator) -> None:
    work = SHAKY.workload
    fined = (rng.random(N) < work.planted_cases) & (rng.random(N) < work.lazy_error)
    assert agrees(np.where(fined, SHAKY.rules.stake, 0.0), lazy_vote_loss(SHAKY))


@pytest.mark.parametrize(("records", "faulty", "samples"), [(1000, 100, 40), (1000, 1, 40), (20, 3, 5), (20, 20, 1)])
def test_how_often_a_sample_holds_a_fault(rng: np.random.Generator, records: int, faulty: int, samples: int) -> None:
    seen = rng.hypergeometric(faulty, records - faulty, samples, N) > 0
    assert agrees(seen.astype(float), sampled_detection(records, faulty, samples))


def test_draws_of_another_economy_do_not_agree(rng: np.random.Generator) -> None:
    """The tolerance of these tests is not so wide that anything passes."""
    other = replace(SHAKY, workload=replace(SHAKY.workload, honesty=0.75))
    assert not agrees(accused(rng, other), accusing_gain(SHAKY))
    assert not agrees(convicted(rng, other).astype(float), caught(SHAKY))
    assert not agrees(ends_wrongly(rng, other).astype(float), wrong(SHAKY))
