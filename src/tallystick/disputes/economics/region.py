"""For which designs all conditions hold: ranges of bonds, committees and gas prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tallystick.disputes.economics.conditions import unmet
from tallystick.disputes.economics.workload import Economy

AUDIT_PROBABILITIES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
COMMITTEES: Final = (1, 3, 5, 7, 9, 15, 21, 31, 51, 63)
HONESTIES: Final = (0.51, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
RATIOS: Final = tuple(float(f"{10 ** (step / 20):.6g}") for step in range(-20, 81))
"""Bond ÷ saving, from 0.1 to 10,000, with twenty steps for each power of ten."""
PRECISION: Final = 1e-4
DEAREST_GAS: Final = 1e6


@dataclass(frozen=True)
class Range:
    """The smallest and the largest bond ÷ saving at which all conditions hold, and the conditions that fail beyond."""

    least: float
    largest: float
    fails_below: tuple[str, ...]
    fails_above: tuple[str, ...]


def with_bond(economy: Economy, audit_probability: float, ratio: float) -> Economy:
    """The same economy at another audit probability, and with a bond of `ratio` times what a cheat saves."""
    rules = economy.rules.model_copy(update={"prover_bond": round(ratio * economy.workload.saving)})
    return Economy(rules, replace(economy.workload, audit_probability=audit_probability))


def with_committee(economy: Economy, honesty: float, seats: int) -> Economy:
    """The same economy with another share of honest members, and another size of the first committee."""
    rules = economy.rules.model_copy(update={"committee": seats})
    return Economy(rules, replace(economy.workload, honesty=honesty))


def bond_range(economy: Economy, audit_probability: float) -> Range | None:
    """The interval of bonds in which all conditions hold; `None` if it contains none of `RATIOS`."""

    def fails(ratio: float) -> tuple[str, ...]:
        return unmet(with_bond(economy, audit_probability, ratio))

    inside = [place for place, ratio in enumerate(RATIOS) if not fails(ratio)]
    if not inside:
        return None
    first, last = inside[0], inside[-1]
    outside = _edge(fails, RATIOS[first], RATIOS[first - 1]) if first else (RATIOS[0], RATIOS[0])
    beyond = _edge(fails, RATIOS[last], RATIOS[last + 1]) if last + 1 < len(RATIOS) else (RATIOS[-1], RATIOS[-1])
    return Range(outside[0], beyond[0], fails(outside[1]), fails(beyond[1]))


def committee_map(
    economy: Economy, honesties: Sequence[float], committees: Sequence[int]
) -> list[list[tuple[str, ...]]]:
    """The conditions that fail at each honesty (rows) and size of the first committee (columns)."""
    return [[unmet(with_committee(economy, honesty, seats)) for seats in committees] for honesty in honesties]


def least_honesty(economy: Economy, seats: int) -> float | None:
    """The smallest honest share at which all conditions hold for a first committee of `seats`; `None` for none."""

    def fails(honesty: float) -> tuple[str, ...]:
        return unmet(with_committee(economy, honesty, seats))

    return None if fails(1.0) else _edge(fails, 1.0, 0.0)[0]


def largest_gas_price(economy: Economy) -> float:
    """The price of gas up to which all conditions hold; infinite if gas does not matter, 0 if they never hold."""

    def fails(price: float) -> tuple[str, ...]:
        return unmet(replace(economy, workload=replace(economy.workload, gas_price=price)))

    if fails(0.0):
        return 0.0
    return math.inf if not fails(DEAREST_GAS) else _edge(fails, 0.0, DEAREST_GAS)[0]


def _edge(fails: Callable[[float], tuple[str, ...]], inside: float, outside: float) -> tuple[float, float]:
    """The edge by bisection: two neighbouring points, the last inside and the first outside."""
    while abs(outside - inside) > PRECISION * max(inside, outside):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if fails(middle) else (middle, outside)
    return inside, outside
