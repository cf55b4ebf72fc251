"""What false challenges cost, whom they pay, and how much delay they buy."""

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
"""A challenger's bond is this many times what its challenge costs the prover."""


def false_challenge_cost(economy: Economy) -> float:
    """What a false challenge costs in expectation: (1 − W)·(bond + fees), and gas."""
    gas = economy.workload.gas_challenge * economy.workload.gas_price
    return (1 - wrong(economy)) * lost_accusation(economy.rules) + gas


def false_challenge_prize(economy: Economy) -> float:
    """What a false challenge wins in expectation, where the committee errs."""
    return wrong(economy) * reward(economy.rules)


@dataclass(frozen=True)
class Delay:
    """The longest time that one false challenge keeps a claim from being final, and what it costs."""

    appeals: int | None
    seconds: float
    cost: float


def delays(economy: Economy) -> Iterator[Delay]:
    """The delays that can be bought: silence until the clock ends (no `appeals`), a committee, a committee and appeals.

    Against a prover that answers at once, with nonces that take one window of votes to come. More challenges at the
    same time buy no more: they run side by side, and none can be opened after the window.
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
    """The challenger's moves from a run of so many records to one of a step's operators; 1 at least."""
    return max(1, rounds(records, rules.ways) + rounds(operators, rules.ways))


def compensation(economy: Economy, delay: Delay) -> float:
    """What a prover that was right is paid after a false challenge: the challenger's bond, and those of its appeals."""
    return economy.rules.challenger_bond + (delay.appeals or 0) * economy.rules.appeal_bond


def imposed(economy: Economy, delay: Delay) -> float:
    """What a false challenge costs the prover in expectation.

    Its answers, the price of bond and revenue that wait for so long, its own appeals, and everything, what it would
    have been paid included, if the ruling is wrong.
    """
    work = economy.workload
    stake = economy.rules.prover_bond + work.revenue
    waiting = stake * work.capital_rate * delay.seconds / YEAR
    if delay.appeals is None:
        return work.answering + waiting
    lost = wrong(economy) * (stake + compensation(economy, delay))
    return work.answering + waiting + appeals_expected(economy) + lost


def least_compensated(economy: Economy) -> Delay:
    """Of all false challenges the one that pays the prover least for what it costs."""
    return min(delays(economy), key=lambda each: compensation(economy, each) - MARGIN * imposed(economy, each))


@dataclass(frozen=True)
class Spam:
    """What `challenges` false challenges of one claim do: to the spammer, and to an honest prover."""

    challenges: int
    lost: float
    won: float
    imposed: float
    answering_seconds: float
    wrongly_convicted: float


def sybils(economy: Economy, challenges: int) -> Spam:
    """All of them fought to a committee and none shared: each is answered as if it were the only one."""
    delay = next(each for each in delays(economy) if each.appeals == 0)
    return Spam(
        challenges=challenges,
        lost=challenges * lost_accusation(economy.rules),
        won=challenges * compensation(economy, delay),
        imposed=challenges * imposed(economy, delay),
        answering_seconds=challenges * economy.workload.answer_seconds,
        wrongly_convicted=1 - (1 - wrong(economy)) ** challenges,
    )
