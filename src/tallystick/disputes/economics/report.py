"""Everything that follows from rules and a workload, as one JSON object and as a drawing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tallystick.core.canonical_json import Json
from tallystick.core.plots import LIGHT, dress, new_figure, write_png
from tallystick.disputes.economics import conditions, costs
from tallystick.disputes.economics.conditions import (
    Range,
    bond_range,
    conditions as all_conditions,
    least_honesty,
    rounded,
    unmet,
    with_committee,
)
from tallystick.disputes.economics.costs import Economy, wrong

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Draw the region of designs in which all conditions hold.

QUIET, GOOD, EDGE, STAR = LIGHT.quiet, LIGHT.region, LIGHT.series[2], LIGHT.bad
"""Colours of side remarks, the region, its edge, and the marked design."""
AUDITS: Final = tuple(float(each) for each in np.geomspace(0.005, 1.0, 61))
LOWEST, HIGHEST = 0.3, 3000.0
SEATS: Final = tuple(range(1, 64, 2))
HONESTIES: Final = tuple(float(each) for each in np.linspace(0.5, 1.0, 101))
INSIDE: Final = "all conditions hold"
NOWHERE: Final = "nowhere do all conditions hold"
WRONG_LEVELS: Final = (-12, -8, -4, -1)


def draw_region(economy: Economy, path: Path) -> None:
    """Write two maps as PNG: bond ÷ saving over audit probability, and honesty over the size of the first committee.

    `economy` is marked in both. Raises `UnavailableError` if matplotlib is not installed.
    """
    figure = new_figure(11.5, 5.0)
    left, right = figure.subplots(1, 2)
    _draw_bonds(left, economy)
    _draw_committees(right, economy)
    write_png(figure, path)


def _draw_bonds(panel: Axes, economy: Economy) -> None:
    ranges = [(audit, bond_range(economy, audit)) for audit in AUDITS]
    inside = [(audit, each.least, each.largest) for audit, each in ranges if each is not None]
    if not inside:
        _write(panel, 0.07, 30, NOWHERE)
    else:
        audits, least, largest = zip(*inside, strict=True)
        panel.fill_between(audits, least, largest, color=GOOD, linewidth=0)
        panel.plot([*audits[::-1], *audits], [*least[::-1], *largest], color=EDGE, linewidth=2)
    work = economy.workload
    ratio = economy.rules.prover_bond / work.saving if work.saving > 0 else HIGHEST
    _mark(panel, work.audit_probability, ratio, not unmet(economy))
    panel.set(xscale="log", yscale="log", xlim=(AUDITS[0], 1), ylim=(LOWEST, HIGHEST))
    panel.set(xlabel="audit probability", ylabel="prover's bond ÷ what a cheat saves")
    panel.set_xticks([0.01, 0.1, 1], ["1 %", "10 %", "100 %"])
    panel.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    _write_below(panel, 0.02, bond_range(economy, 0.02), 0.1)
    _write_below(panel, 0.4, bond_range(economy, 0.4), 0.35)
    _write_above(panel, bond_range(economy, 1.0))
    panel.minorticks_off()
    dress(panel, "Bond and audits")


def _draw_committees(panel: Axes, economy: Economy) -> None:
    edges = [(seats, least_honesty(economy, seats)) for seats in SEATS]
    inside = [(seats, least) for seats, least in edges if least is not None]
    if not inside:
        _write(panel, 32, 0.95, NOWHERE)
    else:
        seats, least = zip(*inside, strict=True)
        panel.fill_between(seats, least, 1.0, color=GOOD, linewidth=0)
        panel.plot([*seats, seats[-1]], [*least, 1.0], color=EDGE, linewidth=2)
        _write_around(panel, economy, seats, least)
    _draw_errors(panel, economy)
    _mark(panel, economy.rules.committee, economy.workload.honesty, not unmet(economy))
    panel.set(xlim=(SEATS[0], SEATS[-1]), ylim=(0.5, 1.0))
    panel.set(xlabel="members of the first committee", ylabel="honest members of the pool")
    panel.set_xticks([1, 7, 15, 31, 47, 63])
    panel.set_yticks([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], ["50 %", "60 %", "70 %", "80 %", "90 %", "100 %"])
    dress(panel, "Committee and honesty")


def _write_around(panel: Axes, economy: Economy, seats: Sequence[int], least: Sequence[float]) -> None:
    middle, last = len(seats) // 2, seats[-1]
    below = unmet(with_committee(economy, least[middle] - 0.001, seats[middle]))
    _write(panel, 25, 0.97, INSIDE, EDGE)
    _write(panel, 32, 0.52, _failing(below))
    if last < SEATS[-1]:
        beyond = unmet(with_committee(economy, 1.0, last + 2))
        _write(panel, (last + SEATS[-1]) / 2, 0.87, _failing(beyond, 24), turned=True)


def _draw_errors(panel: Axes, economy: Economy) -> None:
    """Lines of equal probability that a dispute ends wrongly."""
    errs = [[wrong(with_committee(economy, honesty, seats)) for seats in SEATS] for honesty in HONESTIES]
    logs = np.log10(np.maximum(errs, 1e-300))
    lines = panel.contour(SEATS, HONESTIES, logs, levels=WRONG_LEVELS, colors=[QUIET], linewidths=0.9, linestyles="--")
    names = {level: f"1 wrong of 10$^{{{-level}}}$" if level < -1 else "1 wrong of 10" for level in WRONG_LEVELS}
    panel.clabel(lines, fmt=names, fontsize=8, colors=[QUIET])


def _mark(panel: Axes, x: float, y: float, is_inside: bool) -> None:
    panel.plot([x], [y], marker="*", markersize=17, color=STAR, markeredgecolor="white", linestyle="none", zorder=5)
    ground = {"facecolor": GOOD if is_inside else "white", "edgecolor": "none", "pad": 1}
    panel.annotate("this design", (x, y), (12, 9), textcoords="offset points", color=STAR, fontsize=10, bbox=ground)


def _write_below(panel: Axes, audit: float, bonds: Range | None, factor: float) -> None:
    if bonds is not None:
        _write(panel, audit, bonds.least * factor, _failing(bonds.fails_below))


def _write_above(panel: Axes, bonds: Range | None) -> None:
    if bonds is not None:
        _write(panel, 0.07, bonds.largest * 3, _failing(bonds.fails_above))
        _write(panel, 0.3, bonds.largest / 2.5, INSIDE, EDGE)


def _failing(names: Sequence[str], width: int = 36) -> str:
    return textwrap.fill(f"not met: {names[0]}", width) if names else ""


def _write(panel: Axes, x: float, y: float, text: str, colour: str = QUIET, turned: bool = False) -> None:
    panel.text(x, y, text, color=colour, fontsize=10, ha="center", va="center", rotation=90 if turned else 0)


# Everything that follows from rules and a workload, as one JSON object.

RULES: Final = ("prover_bond", "challenger_bond", "appeal_bond", "stake", "vote_fee", "reward", "committee", "appeals")
CHALLENGES: Final = (1, 10, 100)


def report(economy: Economy) -> dict[str, Json]:
    """The conditions with their values, the figures behind them, and the costs of committees, spam and delays."""
    return {
        "rules": {name: getattr(economy.rules, name) for name in RULES},
        "workload": asdict(economy.workload),
        "met": all(each.is_met for each in all_conditions(economy)),
        "conditions": [each.to_json() for each in all_conditions(economy)],
        "figures": {name: _plain(value) for name, value in figures(economy).items()},
        "committees": _committees(economy),
        "spam": [_rounded(asdict(conditions.sybils(economy, count))) for count in CHALLENGES],
        "delays": [_rounded(asdict(each)) for each in conditions.delays(economy)],
    }


def figures(economy: Economy) -> dict[str, float]:
    """The thresholds of the design, its costs, and what a cheat can buy; each by a sentence that names it."""
    rules, work = economy.rules, economy.workload
    cheats, looks = costs.equilibrium(economy)
    audits = work.audit_probability * work.cost_verify
    return {
        "a cheat is convicted with probability": costs.caught(economy),
        "least prover's bond": costs.least_bond(economy),
        "least audit probability": costs.least_audit_probability(economy),
        "a convicted prover with a friend keeps": rules.prover_bond - costs.bond_at_risk(rules),
        "a winning challenger is paid": costs.reward(rules),
        "least share of claims with a paid fault": costs.least_fault_rate(economy),
        "least subsidy per recomputed claim without faults": costs.least_subsidy(economy),
        "planted faults cost per claim": costs.planting(economy),
        "mandatory audits cost, of an honest run": audits / work.cost_honest if work.cost_honest else math.inf,
        "without planting, provers cheat with probability": cheats,
        "without planting, challengers look with probability": looks,
        "watchers at which silence cannot be bought": costs.watchers_beyond_bribes(economy),
        "votes that decide the last round": costs.bribes_needed(economy),
        "least share of stings among bribes": costs.least_stings(economy),
        "largest price of gas": conditions.largest_gas_price(economy),
    }


def regions(economy: Economy) -> dict[str, Json]:
    """The two maps of the region, as tables."""
    committees = conditions.committee_map(economy, conditions.HONESTIES, conditions.COMMITTEES)
    return {
        "bonds": [_bonds(economy, audit) for audit in conditions.AUDIT_PROBABILITIES],
        "committees": [
            {
                "honesty": honesty,
                "unmet": {str(seats): list(names) for seats, names in zip(conditions.COMMITTEES, row, strict=True)},
            }
            for honesty, row in zip(conditions.HONESTIES, committees, strict=True)
        ],
    }


def _bonds(economy: Economy, audit: float) -> dict[str, Json]:
    bonds = conditions.bond_range(economy, audit)
    if bonds is None:
        return {"audit_probability": audit, "least": None, "largest": None}
    ends: dict[str, Json] = {"fails_below": [*bonds.fails_below], "fails_above": [*bonds.fails_above]}
    return {"audit_probability": audit, "least": rounded(bonds.least), "largest": rounded(bonds.largest), **ends}


def _committees(economy: Economy) -> list[Json]:
    seats = costs.sizes(economy.rules, economy.workload.pool)
    return [{"seats": m, "wrong": rounded(w)} for m, w in zip(seats, costs.wrong_rounds(economy), strict=False)]


def _rounded(fields: dict[str, Any]) -> dict[str, Json]:
    return {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Json:
    return rounded(value) if isinstance(value, float) else value
