"""The assumptions around a dispute, and what cheating, looking, collusion and committees cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Annotated, Final

from tallystick.core.errors import UsageError
from tallystick.disputes.game.state import DAY, MONEY_MAX, Rules

# The assumptions about the world around a dispute: costs, prices and probabilities.

YEAR: Final = 365 * DAY
PROBABILITIES: Final = frozenset(
    ("audit_probability", "detection", "honesty", "planted", "fault_rate", "certain", "planted_cases", "lazy_error")
)
"""The fields of a workload that are probabilities."""


@dataclass(frozen=True)
class ClaimKind:
    """One kind of claim; the defaults are the reference workload.

    Money is in the coordinator's unit. The words beside a number are the help of its option in `tally economics`.
    """

    revenue: Annotated[float, "Paid for a claim once it is final."] = 130_000
    cost_honest: Annotated[float, "Running as claimed."] = 100_000
    cost_cheat: Annotated[float, "Running the cheat."] = 40_000
    cost_verify: Annotated[float, "Recomputing a sample of a claim."] = 5_000
    cost_answer: Annotated[float, "The prover's work in one dispute."] = 10_000
    cost_challenge: Annotated[float, "The challenger's work in one dispute."] = 10_000
    cost_vote: Annotated[float, "Judging one operator, as a member of a committee."] = 500
    answer_seconds: Annotated[float, "Time in which the prover answers one dispute."] = 600
    records: Annotated[int, "Records of a claim."] = 1_000
    operators: Annotated[int, "Operators of one record."] = 2_000
    sybils: Annotated[int, "False challenges that must be answered side by side."] = 100
    audit_probability: Annotated[float, "That somebody recomputes a claim."] = 0.2
    detection: Annotated[float, "That this finds the cheat and decides the dispute."] = 0.99
    honesty: Annotated[float, "Share of members that vote as they find."] = 0.8
    pool: Annotated[int, "Members to draw from; 0 for a large pool."] = 0
    certain: Annotated[float, "Share of disputes that a theorem decides."] = 0.0
    planted: Annotated[float, "Share of claims with a planted fault."] = 0.03
    fault_rate: Annotated[float, "Share of other claims with a fault whose finder is paid."] = 0.0
    planted_cases: Annotated[float, "Share of a committee's cases that are planted."] = 0.1
    lazy_error: Annotated[float, "That a vote without looking is wrong on a planted case."] = 0.5
    capital_rate: Annotated[float, "Price of money, per year."] = 0.1
    gas_price: Annotated[float, "Price of one gas; 0 without a chain."] = 0.0
    gas_claim: Annotated[float, "Gas of posting and closing a claim."] = 200_000
    gas_answer: Annotated[float, "Gas of the prover in one dispute."] = 1_500_000
    gas_challenge: Annotated[float, "Gas of the challenger in one dispute."] = 500_000

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


# How often a committee rules wrongly.


def sizes(rules: Rules, pool: int = 0) -> tuple[int, ...]:
    """The sizes of the first committee and of each appeal's: m, 2m + 1, 4m + 3, … while the pool has enough members.

    The first committee has at most the largest odd number of members in the pool. The result is empty if there are
    none. `pool` = 0 is a pool without limit.
    """
    largest = min(rules.committee, pool or rules.committee)
    first = largest if largest % 2 else largest - 1
    wanted = ((first + 1) * 2**appeal - 1 for appeal in range(rules.appeals + 1))
    return tuple(seats for seats in wanted if 0 < seats <= (pool or seats))


@lru_cache(maxsize=1 << 14)
def wrong_majority(seats: int, honesty: float, pool: int = 0) -> float:
    """P(at least half of the seats are not honest).

    Binomial for a large pool, `pool` = 0: Σ_{i ≥ m/2} C(m, i) (1 − h)^i h^(m − i). Hypergeometric for a finite pool,
    which has at least `seats` members and is drawn from without repetition; the number of honest members is rounded
    down. A tie counts as wrong, because half of the votes can block any finding.
    """
    if pool:
        return _hypergeometric(seats, math.floor(honesty * pool + 1e-9), pool)
    terms = (
        math.comb(seats, i) * (1 - honesty) ** i * honesty ** (seats - i) for i in range(-(-seats // 2), seats + 1)
    )
    return min(1.0, math.fsum(terms))


def wrong_rounds(economy: Economy) -> tuple[float, ...]:
    """The probability that each round alone rules wrongly; 1 for a pool without members."""
    work = economy.workload
    return tuple(wrong_majority(each, work.honesty, work.pool) for each in sizes(economy.rules, work.pool)) or (1.0,)


def wrong(economy: Economy) -> float:
    """The probability that a dispute ends wrongly if each side appeals when it loses: the last round decides alone."""
    return (1 - economy.workload.certain) * wrong_rounds(economy)[-1]


def _hypergeometric(seats: int, honest: int, pool: int) -> float:
    corrupt = pool - honest
    ways = (math.comb(corrupt, i) * math.comb(honest, seats - i) for i in range(-(-seats // 2), seats + 1))
    return sum(ways) / math.comb(pool, seats)


# What the rules pay when a dispute ends.


def reward(rules: Rules) -> float:
    """What a winning challenger is paid beyond its own money after one committee: r·(B − first fees)."""
    return (rules.prover_bond - rules.deposit) * rules.reward / 1000


def bond_at_risk(rules: Rules) -> float:
    """What a convicted prover loses if a friend accuses it first and it concedes: (1 − r)·B.

    There is no committee to pay, and the friend is the winning challenger.
    """
    return rules.prover_bond * (1 - rules.reward / 1000)


def lost_accusation(rules: Rules) -> float:
    """What a challenger pays if a committee finds it at fault: its bond, to the prover, and the committee's fees."""
    return rules.challenger_bond + rules.deposit


def appeal_fees(economy: Economy) -> tuple[float, ...]:
    """The fees that each appeal pays to the larger committee; they are never returned."""
    seats = sizes(economy.rules, economy.workload.pool)[1:]
    return tuple(float(economy.rules.vote_fee * each) for each in seats)


# When cheating costs more than it saves.


def caught(economy: Economy) -> float:
    """P(a cheat is convicted) = audit probability × detection × P(ruling right)."""
    work = economy.workload
    return work.audit_probability * work.detection * (1 - wrong(economy))


def honest_profit(economy: Economy) -> float:
    """An honest prover's profit per claim: revenue − cost − gas − interest on the bond until the window ends."""
    rules, work = economy.rules, economy.workload
    bound = rules.prover_bond * work.capital_rate * rules.challenge_window / YEAR
    return work.revenue - work.cost_honest - work.gas_claim * work.gas_price - bound


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


# When looking for faults pays: the verifier's dilemma, planted faults, subsidies and mandatory audits.


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


# What a cheat can buy: a friend's accusation, a challenger's silence, a committee.


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
