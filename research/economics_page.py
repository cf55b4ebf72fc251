#!/usr/bin/env python3
"""Write docs/economics.md, docs/data/economics.json and docs/economics_region.png from `tallystick.disputes.economics`.

python -m research.economics_page            a few seconds; nothing is measured, everything is computed
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from tallystick.disputes.economics.conditions import (
    COMMITTEES,
    HONESTIES,
    WRONG_MAX,
    compensation,
    conditions,
    delays,
    imposed,
    largest_gas_price,
    least_compensated,
    rounded,
    sybils,
    turns,
    unmet,
)
from tallystick.disputes.economics.costs import (
    Economy,
    accusing_gain,
    appeal_fees,
    appeals_expected,
    bond_at_risk,
    bribes_needed,
    lazy_vote_loss,
    least_bond,
    lost_accusation,
    planting,
    reward,
    sizes,
    worst_guilty_appeal,
    worst_just_appeal,
    wrong,
    wrong_majority,
    wrong_rounds,
)
from tallystick.disputes.economics.report import draw_region, figures, regions, report

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
COMMAND: Final = "python -m research.economics_page"
SAMPLES: Final = 40
FAULTY: Final = (1, 10, 50, 100, 500, 1000)
CORRUPT: Final = (0.1, 0.2, 0.3, 0.4)
SEATS: Final = (3, 5, 7, 9, 15, 21, 31, 51, 101)
CROWDS: Final = (1, 3, 10, 30, 100)
REWARDS: Final = (0, 250, 500, 750, 900, 1000)
DAY: Final = 86_400

TEMPLATE: Final = Path(__file__).with_suffix(".md")


def main() -> None:
    """Write the page, its data and its picture."""
    economy = Economy()
    (DOCS / "economics.md").write_text(page(economy), "utf-8")
    (DOCS / "data" / "economics.json").write_text(
        json.dumps(data(economy), indent=1, ensure_ascii=False) + "\n", "utf-8"
    )
    draw_region(economy, DOCS / "economics_region.png")


def data(economy: Economy) -> dict[str, Any]:
    """Every figure of the page."""
    return {
        "command": COMMAND,
        **report(economy),
        "regions": regions(economy),
        "corrupt_majorities": [
            {"corrupt": a, **{str(m): rounded(wrong_majority(m, 1 - a)) for m in SEATS}} for a in CORRUPT
        ],
        "partial_cheats": [{"faulty": x, "shows": rounded(_shows(economy, x))} for x in FAULTY],
        "rewards": [{"reward": each, "least_bond": rounded(least_bond(_rewarded(economy, each)))} for each in REWARDS],
    }


def page(economy: Economy) -> str:
    """The page, in Markdown."""
    filled = TEMPLATE.read_text("utf-8").format(**_tables(economy), **_numbers(economy))
    return "\n\n".join(map(_wrapped, filled.split("\n\n")))


def _numbers(economy: Economy) -> dict[str, Any]:
    rules, work, found = economy.rules, economy.workload, figures(economy)
    by_name = {each.name: each for each in conditions(economy)}
    worst, crowd, gas = least_compensated(economy), sybils(economy, work.sybils), largest_gas_price(economy)
    full = replace(economy, workload=replace(work, cost_verify=work.cost_honest))
    false = by_name["a false challenge does not pay"]
    (just_cost, just_gain), (fight_cost, fight_gain) = worst_just_appeal(economy), worst_guilty_appeal(economy)
    return {
        **{name: value for name, value in asdict(work).items() if name not in ("pool", "sybils")},
        "command": COMMAND,
        "count": len(by_name),
        "samples": SAMPLES,
        "saving": work.saving,
        "right": 1 - wrong(economy),
        "caught": found["a cheat is convicted with probability"],
        "risk": by_name["cheating does not pay"].value,
        "friend": by_name["cheating does not pay, accused by a friend"].value,
        "profit": by_name["honest work pays"].value,
        "one": _shows(economy, 1),
        "watchers": found["watchers at which silence cannot be bought"],
        "accusing": accusing_gain(economy),
        "appeals_expected": appeals_expected(economy),
        "least_faults": found["least share of claims with a paid fault"],
        "looking": by_name["looking pays"].value,
        "cheats": found["without planting, provers cheat with probability"],
        "looks": found["without planting, challengers look with probability"],
        "every": 1 / found["without planting, provers cheat with probability"],
        "planting_least": planting(_planted(economy, found["least share of claims with a paid fault"])),
        "planting": found["planted faults cost per claim"],
        "cheap": work.cost_cheat / work.cost_honest,
        "mandatory": work.audit_probability * work.cost_verify,
        "mandatory_share": found["mandatory audits cost, of an honest run"],
        "full": figures(full)["least share of claims with a paid fault"],
        "prize": false.threshold,
        "false_cost": false.value,
        "paid": compensation(economy, worst),
        "owed": imposed(economy, worst),
        "sybil_count": work.sybils,
        "answering": crowd.answering_seconds,
        "clock": rules.clock,
        "turns": turns(rules, work.records, work.operators),
        "ways": rules.ways,
        "pause": rules.pause_max // DAY,
        "wrong_last": _say(wrong_rounds(economy)[-1]),
        "wrong_lone": _say(wrong_if_only_the_honest_appeal(wrong_rounds(economy))),
        "wrong_poor": _say(wrong_if_the_honest_cannot_appeal(wrong_rounds(economy))),
        "wrong_max": f"{WRONG_MAX:g}",
        "just_gain": just_gain,
        "just_cost": just_cost,
        "fight_cost": fight_cost,
        "fight_gain": fight_gain,
        "lazy": lazy_vote_loss(economy),
        "vote_fee": rules.vote_fee,
        "bribes": bribes_needed(economy),
        "stings": found["least share of stings among bribes"],
        "picture": "economics_region.png",
        "gas": gas,
        "gas_fails": unmet(replace(economy, workload=replace(work, gas_price=1.01 * gas)))[0],
        "worth": float(f"{work.cost_honest / gas:.2g}"),
    }


def _tables(economy: Economy) -> dict[str, str]:
    found = regions(economy)
    return {
        "conditions": _conditions(economy),
        "workload": _workload(economy),
        "partial": _partial(economy),
        "rewards": _rewards(economy),
        "crowds": _sybils(economy),
        "delays": _delays(economy),
        "majorities": _majorities(),
        "rounds": _rounds(economy),
        "bonds": _bonds(found["bonds"]),
        "committees": _committees(found["committees"]),
    }


def _conditions(economy: Economy) -> str:
    rows = [
        (each.name, _say(each.value), each.relation, _say(each.threshold), _yes(each.is_met))
        for each in conditions(economy)
    ]
    return _table(("condition", "value", "", "threshold", "met"), rows)


def _workload(economy: Economy) -> str:
    held = report(economy)
    work, rules = held["workload"], held["rules"]
    assert isinstance(work, dict)  # as `report` makes it
    assert isinstance(rules, dict)
    return ", ".join(f"`{name}` = {_say(float(str(value)))}" for name, value in {**work, **rules}.items())


def _partial(economy: Economy) -> str:
    work, bond = economy.workload, bond_at_risk(economy.rules)
    chance = figures(economy)["a cheat is convicted with probability"]
    rows = []
    for faulty in FAULTY:
        shows = _shows(economy, faulty)
        saved, risked = work.saving * faulty / work.records, chance * shows * (bond + work.revenue)
        rows.append((f"{faulty:,}", f"{shows:.3f}", _say(saved), _say(risked)))
    return _table(("records cheated", f"shows in {SAMPLES} of {work.records:,}", "saved", "risked"), rows)


def _rewards(economy: Economy) -> str:
    rows = []
    for each in REWARDS:
        changed = _rewarded(economy, each)
        bond = least_bond(changed)
        rows.append(
            (
                f"{each / 10:g} %",
                "none is enough" if bond == float("inf") else _say(bond),
                _say(reward(changed.rules)),
            )
        )
    return _table(
        ("reward's share", "least bond that deters", f"reward at a bond of {economy.rules.prover_bond:,}"), rows
    )


def _sybils(economy: Economy) -> str:
    heads = ("false challenges", "cost", "paid to the prover", "cost to the prover", "P(one of them wins)")
    rows = []
    for count in CROWDS:
        each = sybils(economy, count)
        rows.append((str(count), *map(_say, (each.lost, each.won, each.imposed, each.wrongly_convicted))))
    return _table(heads, rows)


def _delays(economy: Economy) -> str:
    rows = []
    for each in delays(economy):
        name = "its clock ends" if each.appeals is None else f"appeal {each.appeals}" if each.appeals else "a committee"
        rows.append((name, f"{each.seconds / DAY:.2f}", _say(each.cost), _say(each.cost / each.seconds * DAY)))
    return _table(("a false challenge is played until", "days", "cost", "per day"), rows)


def _majorities() -> str:
    rows = [(f"{a:g}", *(f"{wrong_majority(m, 1 - a):.2g}" for m in SEATS)) for a in CORRUPT]
    return _table(("α \\ m", *map(str, SEATS)), rows)


def _rounds(economy: Economy) -> str:
    rules, errs = economy.rules, wrong_rounds(economy)
    seats, fees = sizes(rules), (lost_accusation(rules) - rules.challenger_bond, *appeal_fees(economy))
    names = ("first", *(f"appeal {number}" for number in range(1, len(seats))))
    rows = [(*each,) for each in zip(names, map(str, seats), map(_say, fees), map(_say, errs), strict=True)]
    return _table(("round", "members", "fees", "errs"), rows)


def _bonds(rows: Any) -> str:
    def cells(row: Any) -> tuple[str, ...]:
        if row["least"] is None:
            return (f"{row['audit_probability']:g}", "none", "none", "", "")
        ends = (_say(row["least"]), _say(row["largest"]), ", ".join(row["fails_below"]), ", ".join(row["fails_above"]))
        return (f"{row['audit_probability']:g}", *ends)

    return _table(("audit probability", "least", "largest", "fails below", "fails above"), map(cells, rows))


def _committees(rows: Any) -> str:
    names = [(f"{row['honesty']:g}", *("✓" if not row["unmet"][str(m)] else "·" for m in COMMITTEES)) for row in rows]
    assert len(names) == len(HONESTIES)
    return _table(("honest \\ members", *map(str, COMMITTEES)), names)


def sampled_detection(records: int, faulty: int, samples: int) -> float:
    """P(a sample without repetition holds a faulty record) = 1 − C(N − b, k) / C(N, k)."""
    return 1 - math.comb(records - faulty, samples) / math.comb(records, samples)


def wrong_if_the_honest_cannot_appeal(rounds: tuple[float, ...]) -> float:
    """1 − Π (1 − w_k), the probability that some round errs: the other side appeals until one does."""
    return 1 - math.prod(1 - each for each in rounds)


def wrong_if_only_the_honest_appeal(rounds: tuple[float, ...]) -> float:
    """Π w_k, the probability that all rounds err."""
    return math.prod(rounds)


def _shows(economy: Economy, faulty: int) -> float:
    return sampled_detection(economy.workload.records, faulty, SAMPLES)


def _rewarded(economy: Economy, share: int) -> Economy:
    return replace(economy, rules=economy.rules.model_copy(update={"reward": share}))


def _wrapped(block: str) -> str:
    """A paragraph or a list in lines of 120 characters; tables, headings and indented lines as they are."""
    if block.startswith(("|", "#", "    ", "!")):
        return block
    items = block.strip().split("\n")
    end = "\n" * (len(block) - len(block.rstrip("\n")))
    options: dict[str, Any] = {"width": 120, "break_long_words": False, "break_on_hyphens": False}
    return (
        "\n".join(textwrap.fill(item, subsequent_indent="  " * item.startswith("* "), **options) for item in items)
        + end
    )


def _planted(economy: Economy, share: float) -> Economy:
    return replace(economy, workload=replace(economy.workload, planted=share))


def _say(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _yes(is_met: bool) -> str:
    return "✓" if is_met else "no"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main()
