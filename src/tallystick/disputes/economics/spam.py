"""What false challenges cost, who is paid for them, and how long they can delay a claim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tallystick.disputes.economics.challenging import appeals_expected
from tallystick.disputes.economics.committee import wrong
from tallystick.disputes.economics.money import appeal_fees, lost_accusation, reward
from tallystick.disputes.economics.workload import YEAR, Economy
from tallystick.disputes.game.partition import rounds
from tallystick.disputes.game.rules import Rules

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
