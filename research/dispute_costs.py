#!/usr/bin/env python3
"""Write docs/dispute_costs.md and its plots from docs/data/benchmarks.json, which `python -m benchmarks` keeps.

python -m research.dispute_costs            a few seconds; nothing is measured here
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from research.dispute_figures import (
    DOCS,
    NAMES,
    WAYS,
    Held,
    after,
    all_disputes,
    all_ways,
    at_default,
    bold,
    counts,
    figures,
    find,
    interval,
    is_time_of,
    mark,
    noted,
    of_graph,
    on_the_wall,
    own_size,
    proofs,
    read_data,
    seconds,
    table,
    workload,
    works_of,
)
from research.dispute_plots import GOAL, PHASES, draw_time, draw_ways
from tallystick.disputes.game.state import rounds

PAGE: Final = DOCS / "dispute_costs.md"
WAYS_PLOT: Final = DOCS / "dispute_costs_ways.png"
TIME_PLOT: Final = DOCS / "dispute_costs_time.png"
TEMPLATE: Final = Path(__file__).with_suffix(".md")
COMMAND: Final = "python -m research.dispute_costs"
SMALL: Final = "a call of 8 layers, width 128, 128 tokens"
WIDE: Final = "a call of 4 layers, width 512, 256 tokens"
REAL: Final = "a call of SmolLM2-135M, 256 tokens"


def main() -> None:
    """Write the page and its plots."""
    held = read_data()
    PAGE.write_text(page(held), "utf-8")
    draw_ways(held, WAYS_PLOT)
    draw_time(held, TIME_PLOT)


def page(held: Held) -> str:
    """The page, in Markdown."""
    filled = TEMPLATE.read_text("utf-8").format(**_tables(held), **_numbers(held), command=COMMAND, ways=WAYS)
    return "\n\n".join(map(_wrapped, filled.split("\n\n")))


def _tables(held: Held) -> dict[str, str]:
    return {
        "goals": _goals(held),
        "rounds": _rounds(held),
        "board": _board(held),
        "work": _work(held),
        "referee": _referee(held),
        "time": _time(held),
        "idle": _idle(held),
        "others": _others(held),
    }


def _numbers(held: Held) -> dict[str, Any]:
    return {
        "machine": _machine(held),
        "loads": _loads(held),
        "own_size": own_size(held),
        **_numbers_of_gas(held),
        **_numbers_of_ways(held),
        **_numbers_of_work(held),
        **_numbers_of_time(held),
    }


def _numbers_of_gas(held: Held) -> dict[str, Any]:
    committee, undisputed = find(held, "dispute_gas: a committee"), find(held, "dispute_gas: an undisputed claim")
    gas = {ways: find(held, f"dispute_gas: 1000/{ways}")["value"][0] / 1e6 for ways in all_ways(held)}
    least = min(gas, key=lambda ways: gas[ways])
    return {
        "committee_members": committee["members"],
        "committee_pool": committee["pool"],
        "committee_gas": f"{committee['value'][0]:,.0f}",
        "committee_moves": committee["transactions"],
        "undisputed_gas": f"{undisputed['value'][0]:,.0f}",
        "gas_least": gas[least],
        "gas_least_ways": least,
        "gas_ways": gas[WAYS],
        "gas_32": gas[32],
        "gas_better": gas[_better(held)] / gas[WAYS] - 1,
    }


def _numbers_of_ways(held: Held) -> dict[str, Any]:
    stored = {each["ways"]: each["value"][0] for each in of_graph(held, "")}
    drift = at_default(held, "drift ")
    return {
        "ways_cubed": WAYS**3,
        "board_size": drift["size"],
        "board_2": stored[2],
        "board_ways": stored[WAYS],
        "board_32": stored[32],
        "work_mean": drift["mean"],
        "work_most": drift["value"][0],
        "work_over": drift["value"][0] - GOAL,
        "work_better": _better(held),
    }


def _numbers_of_work(held: Held) -> dict[str, Any]:
    large, claimed = proofs(held)[0], find(held, f"dispute_work: claimed, {REAL}, cpu")
    named = {"small": SMALL, "wide": WIDE, "real": REAL}
    works = {
        f"{arm}_{name}": interval(find(held, f"dispute_work: {arm}, {workload}, cpu")["value"])
        for arm in ("bisecting", "alone", "opening")
        for name, workload in named.items()
    }
    return works | {
        "played": _convicted(held),
        "claimed": interval(claimed["value"]),
        "claimed_rounds": claimed["rounds"],
        "claimed_looking": interval(claimed["looking at the claim"]),
        "hashing": ", ".join(f"{each['SHA-256 of the opened bytes'][0]:.2g}" for each in works_of(held, "opening")),
        "proof_size": large["operators"],
        "proof_missed": large["operators"] - large["operators within the goal"],
        "proof_most": large["value"][0],
    }


def _numbers_of_time(held: Held) -> dict[str, Any]:
    answers, training = all_disputes(held)
    looking = training["looking and contesting"][0]
    return {
        "looking": looking / training["value"][0],
        "after_looking": training["value"][0] - looking,
        "answers": answers["value"][0],
        "idle_share": f"{find(held, 'dispute_idle: program')['share of one core']:.2g}",
    }


def _better(held: Held) -> int:
    """The smallest N with which the challenger's work meets its goal with any kernels."""
    return min(int(each["ways"]) for each in of_graph(held, "drift ") if each["outcome"] == "met")


def _machine(held: Held) -> str:
    machine = held["dispute_time"]["machine"]
    named = (machine[key] for key in ("cpu", "system"))
    return f"{', '.join(named)}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}"


def _loads(held: Held) -> str:
    seen = [each for name in NAMES for each in held[name]["load"]]
    return f"{min(seen):.2g} to {max(seen):.2g}"


def _goals(held: Held) -> str:
    size = own_size(held)
    return table(
        ("what", "goal", "measured", ""),
        [_goal_of_rounds(size), *_goals_of_work(held), *_goals_of_referee(held), _goal_of_idling(held)],
    )


def _goal_of_rounds(size: int) -> tuple[str, ...]:
    cube_root = next(n for n in range(2, size) if n**3 >= size)
    told = f"{rounds(size, cube_root)} at V = {size:,}; with N = {WAYS}, {rounds(size, WAYS)}"
    outcome = "met" if rounds(size, cube_root) <= 3 else "missed"
    return (f"rounds with N = ⌈V^(1/3)⌉ = {cube_root}", "≤ 3", told, bold(outcome))


def _goals_of_work(held: Held) -> Iterable[tuple[str, ...]]:
    for kind, kernels in (("work ", "the prover's"), ("drift ", "other")):
        board = at_default(held, kind)
        what = (
            f"challenger's operators ÷ those of a pass, {kernels} kernels, N = {WAYS}, worst of V = {board['size']:,}"
        )
        yield (what, "≤ 1.05", f"{board['value'][0]:.3f}; mean {board['mean']:.3f}", bold(board["outcome"]))
    for each in works_of(held, "bisecting"):
        what = f"challenger's program ÷ pass, {workload(each)}"
        yield (what, each["goal"], f"{interval(each['value'])} (n = {each['rounds']})", bold(each["outcome"]))
    claimed = find(held, f"dispute_work: claimed, {REAL}, cpu")
    told = f"{interval(claimed['value'])} (n = {claimed['rounds']})"
    yield (f"challenger's choices ÷ pass, {REAL}, claimed", claimed["goal"], told, bold(claimed["outcome"]))


def _goals_of_referee(held: Held) -> Iterable[tuple[str, ...]]:
    yield ("operators that a referee evaluates", "≤ 1", "1", bold("met"))
    for each in proofs(held):
        within = f"{each['operators within the goal']:,} of {each['operators']:,} operators within it"
        what = f"bytes of proof in one-round mode, the most of V = {each['operators']:,}"
        yield (what, "≤ 2,048", f"{each['value'][0]:,.0f}; {within}", bold(each["outcome"]))


def _goal_of_idling(held: Held) -> tuple[str, ...]:
    program = find(held, "dispute_idle: program")
    told = f"{program['value'][0]:.2g} s: {program['share of one core']:.2g} of a core"
    return ("CPU time an hour of the prover's program without disputes", "0", told, bold(program["outcome"]))


def _rounds(held: Held) -> str:
    rows = []
    for played in figures(held, "dispute_rounds"):
        size, ways = played["size"], played["ways"]
        gas = find(held, f"dispute_gas: {size}/{ways}")
        rows.append(
            (
                f"{size:,}",
                mark(ways),
                counts(played["value"]),
                counts(gas["transactions"]),
                f"{played['bytes of moves'][0] / 1000:.1f}",
                f"{played['bytes of calls'][0] / 1000:.1f}",
                f"{gas['value'][0] / 1000:,.0f}",
                f"{gas['prover'][0] / 1000:,.0f}",
                f"{gas['challenger'][0] / 1000:,.0f}",
                f"{gas['largest transaction'] / 1000:,.0f}",
            )
        )
    heads = ("V", "N", "rounds", "transactions", "moves, kB", "calls, kB", "gas, thousands")
    return table((*heads, "prover's", "challenger's", "largest transaction"), rows)


def _board(held: Held) -> str:
    found = figures(held, "dispute_board")
    rows = []
    for stored, work, drift in zip(found[::3], found[1::3], found[2::3], strict=True):
        told = stored["what"].removeprefix("data at the board, ").partition(", V =")[0]
        rows.append(
            (
                told,
                f"{stored['size']:,}",
                mark(stored["ways"]),
                counts(stored["partitions"]),
                f"{stored['descent mb']:.1f}",
                f"{stored['value'][0]:.1f} [{stored['value'][1]:.1f}, {stored['value'][2]:.1f}]",
                f"{stored['all values mb']:.0f}",
                f"{drift['mean']:.3f}",
                f"{drift['value'][0]:.3f}",
                f"{work['value'][0]:.3f}",
            )
        )
    heads = ("graph", "V", "N", "rounds", "descent, MB", "all at the board, MB", "all values of the pass, MB")
    return table((*heads, "challenger's operators ÷ pass, mean", "worst", "worst, same bits"), rows)


def _work(held: Held) -> str:
    rows = []
    for bisecting in works_of(held, "bisecting"):
        name = workload(bisecting)
        alone, opening = (find(held, f"dispute_work: {arm}, {name}, cpu") for arm in ("alone", "opening"))
        rows.append(
            (
                name,
                f"{bisecting['operators']:,}",
                f"{bisecting['pass s']:.3g}",
                f"{bisecting['operators run ÷ operators']:.2f}",
                noted(bisecting),
                noted(alone),
                noted(opening),
                interval(opening["digests alone"]),
            )
        )
    heads = ("a pass", "V", "s", "operators run ÷ V, bisecting", "challenger bisecting ÷ pass")
    others = ("challenger in one-round mode ÷ pass", "prover's opening ÷ pass", "of it running and digesting")
    return table((*heads, *others), rows)


def _referee(held: Held) -> str:
    rows = []
    for each in proofs(held):
        time = next(t for t in figures(held, "dispute_referee") if is_time_of(t, each))
        rows.append(
            (
                after(each["what"], "operator, "),
                f"{each['from the operator to the root']:,.0f}",
                f"{each['median']:,.0f}",
                f"{each['mean']:,.0f}",
                f"{each['value'][0]:,.0f}",
                f"{each['documents'][0]:,.0f}",
                f"{each['shared'][0]:,.0f}",
                f"{each['values'][0] / 1000:,.0f}",
                f"{1000 * time['seconds of a ruling, median']:.1f}",
                f"{1000 * time['seconds of a ruling, 99 of 100']:.1f}",
                noted(time),
            )
        )
    heads = ("graph", "hashes to the root, bytes", "proof, median", "mean", "most")
    others = ("documents, mean", "shared by all leaves", "values, mean kB", "ruling, median ms", "99 of 100")
    return table((*heads, *others, "ruling ÷ pass"), rows)


def _time(held: Held) -> str:
    disputes = all_disputes(held)
    heads = ("CPU seconds", *(after(each["what"], "payment over ") for each in disputes))
    rows = [(phase, *(seconds(each[phase]) for each in disputes)) for phase in PHASES]
    rows.append(("**in all**", *(seconds(each["value"]) for each in disputes)))
    rows.append(("on the wall", *(seconds(on_the_wall(held, each)["value"]) for each in disputes)))
    rows.append(("honest work", *(f"{each['honest work, recording included, s']:.2f}" for each in disputes)))
    rows.append(("operators of the record", *(f"{each['operators']:,}" for each in disputes)))
    rows.append(("moves", *(counts(each["moves"]) for each in disputes)))
    rows.append(("at the board, MB", *(f"{each['mb at the board'][0]:.1f}" for each in disputes)))
    replayed = "steps or calls replayed by the challenger"
    rows.append((replayed, *(counts(each[replayed]) for each in disputes)))
    run = "operators run by the challenger in choosing"
    rows.append((run, *(counts(each[run]) for each in disputes)))
    return table(heads, rows)


def _idle(held: Held) -> str:
    looks = [each for each in figures(held, "dispute_idle") if "look" in each["name"]]
    rows = [
        (
            f"a look, beside {each['claims of others']:,} claims of others",
            f"{each['value'][0]:.3g} [{each['value'][1]:.3g}, {each['value'][2]:.3g}] ms",
            f"n = {each['rounds']:,}",
            f"{each['cpu seconds an hour'][0]:.2g} s an hour",
        )
        for each in looks
    ]
    program = find(held, "dispute_idle: program")
    watched = f"{program['seconds watched']:.0f} s watched"
    hour = f"{program['value'][0]:.2g} s an hour"
    rows.append(("`tally prover`, one look every two seconds", f"{program['resident mib']:.0f} MiB", watched, hour))
    for clock in ("wall", "cpu"):
        each = find(held, f"dispute_idle: training, {clock}")
        outcome = (
            "void: the control failed" if each["outcome"] == "void" else f"control {interval(each['alone ÷ alone'])}"
        )
        told = f"a unit of {each['steps of a unit']} training steps beside it ÷ without it, {clock}"
        rows.append((told, interval(each["value"]), f"n = {each['rounds']}", outcome))
    return table(("what", "", "", ""), rows)


def _others(held: Held) -> str:
    stage = find(held, f"dispute_gas: 1000/{WAYS}")
    size, work = own_size(held), at_default(held, "drift ")
    disputes = all_disputes(held)
    moves = counts(disputes[-1]["moves"])
    own = f"{rounds(size, WAYS)} rounds at V = {size:,}, N = {WAYS}; {moves} moves, claim and payment included"
    work_told = (
        f"challenger {work['mean']:.2f} of a pass in operators, {work['value'][0]:.2f} at worst; referee 1 operator"
    )
    gas = f"{stage['value'][0] / 1e6:.2f} million gas at V = 1,000"
    rows = [
        ("this", own, gas, work_told, "bonds and windows by condition: [economics.md](economics.md)"),
        ("NAO", "log_N V rounds", NOT, NOT, "contract on a test network; FP32, inference only"),
        ("Optimism", "30 to 40 transactions; depth 73", NOT, "one processor step on chain", OPTIMISM),
        ("BoLD", NOT, NOT, NOT, "7 days of window and at most 7 of dispute; bonds of 2.5 to 5 million dollars"),
        ("Dave", "2 to 5 challenge periods", NOT, NOT, "logarithmic growth"),
        ("Verde", "2 phases: step, then operator", NOT, NOT, "needs kernels that give equal bits"),
    ]
    return table(("design", "length", "gas", "work", "besides"), rows)


NOT: Final = "not available"
OPTIMISM: Final = "bond of a move 0.4 to 300 million gas at 200 gwei, × 1.09493 a level; 7 days until money is out"


def _convicted(held: Held) -> int:
    found = [*works_of(held, "bisecting"), *works_of(held, "claimed")]
    convicted, played = (sum(each[key] for each in found) for key in ("convicted", "rounds"))
    assert convicted == played, "a fault was missed: the page has to say so"
    return int(played)


def _wrapped(paragraph: str) -> str:
    if paragraph.startswith(("|", "#", "!", "- ")):
        return paragraph
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
