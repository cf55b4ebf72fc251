"""What the rules pay when a dispute ends."""

from __future__ import annotations

from tallystick.disputes.economics.committee import sizes
from tallystick.disputes.economics.workload import Economy
from tallystick.disputes.game.rules import Rules


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
