"""The pages of a calibration and of the attacks: `docs/calibration.md` and `docs/inference_attacks.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import geometric_mean, median
from typing import Any, Final

from tallystick.verdicts.evidence import clopper_pearson

CALIBRATION: Final = """# Calibration: how far honest operators lie from the exact result

Written by `{command}`; every figure is in `data/calibration.json`, the profiles are `data/profile-*.json`.

Each operator is run on **identical inputs** on every stack, and its result is compared with the exact one: the
operator's definition in float64. The unit is the **share** of its deterministic bound. What is calibrated is the
largest share over all stacks and inputs at four percentiles of the elements (50, 90, 99, 100 %), and the mean share as
a measure of bias. A threshold is **{safety:g} times** that, and never wider than the bound.

Two rules came from these measurements:

* What is calibrated is never less than **one rounding of the result**. A result of one element may by chance be rounded
  well on every stack that was tried, and worse on the next one. A sum that is exact on some inputs is not exact on
  others.
* **Plain loops** are among the stacks, because the order from first term to last has the largest errors of all honest
  orders of a sum. IREE sums in that order. An earlier run had no plain loops (24 sets of inputs, not in the data):
  MiniLM on IREE then exceeded the errors of the other stacks up to 5.4 times, and a factor of 3 rejected 7 of its 12
  runs. The same can happen to any kernel that is unlike all calibrated stacks.

Rules, stacks and factor were chosen after a look at these models on these stacks. So the rates below are no test on new
data, and a profile holds only for stacks like those it was measured on.

Machine: {machine}.
"""

STACKS: Final = """
## Stacks

*Other bits*: the share of results that differ in at least one bit from those of the first stack, on the same inputs.
*Left the bound*: results that are further from the exact one than the proven bound allows. There a library is less
accurate than the bound assumes. No profile can change that: the bound rejects a prover on such a stack at that
operator. These results are not part of the rates below; they are listed after the table.
"""

LEFT_OUT: Final = """
## A stack that was not calibrated on

Thresholds from all other stacks, on every second set of inputs, judge the remaining sets on the stack left out. A run
is rejected if one of its operators is. *Stretch* is the largest error as a multiple of the largest calibrated one
(median, 99 % and largest over the runs); a safety factor above it accepts the run. Stacks with equal errors in 98 % of
the results count as one and are left out together. Runs on the same inputs are not independent of each other. So the
interval (Clopper–Pearson, 95 %) holds for these stacks and these models.
"""

SAFETIES: Final = """
## Which safety factor

The same runs with other factors, and how much tighter than the bound the threshold of the largest element then is
(geometric mean over results that are not exact). The factor is {safety:g}; the largest stretch above is {stretch}.
"""

FAMILIES: Final = """
## How much tighter than the bound

Per operator over all its results in the three models: the largest share of the deterministic bound on any stack, errors
in units in the last place, and 1 ÷ the threshold of the largest element and of the median element, as geometric means
over results. Where all results are exact on every stack, the threshold is equality. The bound of an operator that
rounds once cannot be tightened: 1×. Thresholds are much tighter where many terms are summed, because the bound grows
with their number.
"""

ELSEWHERE: Final = """
## Other graphs, other machines

`tally calibrate GRAPH --inputs DIR --out PROFILE` does the same for any graph, with every stack of the machine, its GPU
included. `tally merge-profiles` joins the profiles of several machines and keeps the larger error everywhere. A
verifier uses a profile of its own (`tally judge --profile`). Results of a calibrated graph are judged by their own
threshold, and those of any other graph by the largest threshold of their operator and dtype.
"""

ATTACKS: Final = """# Inference frauds, and a bound-aware adversary

Written by `{command}`; every figure is in `data/inference_attacks.json`.

The claim names a graph, its weights and its inputs. The prover opens every value of the run, and a verifier judges
each operator on its claimed inputs. Models: the digits classifier and the language model of the demo, both trained, and
MiniLM with its published weights. Each run has one input. Intervals are Clopper–Pearson at 95 %. Machine: {machine}.
"""

CHEATED: Final = """
## Other work than was committed

The claim commits to weights and inputs by their digests; the prover computes with others, or otherwise. A cell says on
how many inputs at least one operator was rejected. *Rejected operators* is their mean number by the calibrated
threshold, and *answer changed* says how often the fraud changed the final decision. `honest` is the control. Attributes
such as an epsilon, an axis or a mask are part of the graph: whoever *states* another one gets another graph root. So
what is tried here is to *use* another one.
"""

SEARCHED: Final = """
## Moving every operator within what is allowed

The adversary knows the region and moves every result inside it, by up to {steps} steps of projected ascent (Madry et
al. 2018) towards the second-best answer; a climb ends after {patience} steps without gain. Starts on each input:
{starts}. It succeeds where the answer changes and the judge accepts every operator. *Margin overcome* is how much of
the distance to another answer it gained (median and largest over the inputs); above 1 the answer changes. *Ties* are
inputs whose two best scores are no further apart than the region allows for these scores alone. Nobody can decide them:
an audit of such an answer is inconclusive, and a change of it is not counted as a success.
"""

REMAINS: Final = """
## What remains possible

- The deterministic bound holds for every order of evaluation, and is correspondingly wide. The last column says what
  share of a margin a prover can overcome who uses the whole bound at every operator. An answer with a smaller margin
  can be changed, and a judge with this bound alone accepts it.
- Inside a calibrated threshold the same holds with the smaller figure of its row. It is not zero: the answer to an
  input with a very small honest margin can be changed. The table shows that this happened to none of these inputs.
- Errors that all point in one direction stay within the deterministic bound up to its whole width (`aligned-…`); the
  bias of a calibrated threshold sees them.
- The search follows gradients and ends. It shows what was reached, and does not prove that no more can be.
"""


def render_calibration(studies: Iterable[dict[str, Any]], command: str) -> str:
    """The page of thresholds."""
    studies = list(studies)
    machines = sorted({machine for study in studies for machine in study["machines"]})
    head = CALIBRATION.format(command=command, safety=studies[0]["safety"], machine="; ".join(machines))
    parts = [head, *_models(studies), STACKS, *_stacks(studies), LEFT_OUT, *_left_out(studies)]
    stretches = [row["stretch"][-1] for study in studies for row in study["left_out"]]
    largest = "∞" if None in stretches else f"{max(stretches):.2f}"
    safeties = SAFETIES.format(safety=studies[0]["safety"], stretch=largest)
    return "\n".join([*parts, safeties, *_safeties(studies), FAMILIES, *_families(studies), ELSEWHERE])


def render_attacks(figures: dict[str, Any], command: str) -> str:
    """The page of attacks."""
    head = ATTACKS.format(command=command, machine=figures["machine"])
    starts = ", ".join(f"{model} {count}" for model, count in figures["starts"].items())
    searched = SEARCHED.format(**figures["effort"], starts=starts)
    return "\n".join([head, CHEATED, *_cheats(figures["cheats"]), searched, *_searches(figures["searches"]), REMAINS])


def _models(studies: list[dict[str, Any]]) -> Iterator[str]:
    yield _row("model", "operators", "sets of inputs", "graph")
    yield _row(*["---"] * 4)
    for study in studies:
        yield _row(study["model"], study["operators"], study["inputs"], f"`{study['graph'][:19]}…`")


def _stacks(studies: list[dict[str, Any]]) -> Iterator[str]:
    yield _row("stack", *(f"{study['model']}: other bits" for study in studies), "not run", "left the bound")
    yield _row(*["---"] * (len(studies) + 3))
    rows = [row for study in studies for row in study["stacks"]]
    for name in dict.fromkeys(row["stack"] for row in rows):
        mine = [row for row in rows if row["stack"] == name]
        differs = [f"{row['differs']:.0%}" for row in mine]
        counts = (sum(len(row[key]) for row in mine) for key in ("skipped", "beyond"))
        yield _row(name, *differs, *counts)
    yield from _notes(studies)


def _notes(studies: list[dict[str, Any]]) -> Iterator[str]:
    lines = [
        f"- {study['model']}, {row['stack']}: {operator} by {distance:.3g} bounds"
        for study in studies
        for row in study["left_out"]
        for operator, distance in row["beyond"].items()
    ]
    lines += [
        f"- {study['model']}, {row['stack']}: n{result} does not run: {reason}"
        for study in studies
        for row in study["stacks"]
        for result, reason in row["skipped"].items()
    ]
    yield "\n" + "\n".join(lines or ["No result left its bound, and every stack ran every operator."])


def _left_out(studies: list[dict[str, Any]]) -> Iterator[str]:
    yield _row("model", "stack left out", "runs", "rejected", "false-reject rate", "stretch", "most stretched")
    yield _row(*["---"] * 7)
    for study in studies:
        for row in study["left_out"]:
            stack = ", ".join([row["stack"], *row["alike"]])
            rate = f"[{row['rate_low']:.4f}, {row['rate_high']:.4f}]"
            stretch = " / ".join("∞" if multiple is None else f"{multiple:.2f}" for multiple in row["stretch"])
            yield _row(study["model"], stack, row["runs"], row["rejected"], rate, stretch, f"`{row['where']}`")
    yield from _totals(studies)


def _totals(studies: list[dict[str, Any]]) -> Iterator[str]:
    """By model, because one with many cheap runs would speak for all."""
    yield ""
    for study in studies:
        rows = study["left_out"]
        runs, rejected = sum(row["runs"] for row in rows), sum(row["rejected"] for row in rows)
        low, high = clopper_pearson(rejected, runs)
        rate = f"[{low:.5f}, {high:.5f}]"
        yield f"- {study['model']}: {rejected} of {runs:,} runs rejected by thresholds, a rate in {rate}."
        for row in rows:
            if row["beyond"]:
                places = ", ".join(f"`{place}`" for place in row["beyond"])
                yield f"  Of these, up to {row['runs']} on {row['stack']} are rejected by the **bound** at {places}."
    yield (
        "\nThe goal is a rate of at most 0.0001 per run. An interval below that takes 37,000 runs without a rejection, "
        "and runs that repeat inputs or resemble each other's stacks count for less than their number."
    )


def _safeties(studies: list[dict[str, Any]]) -> Iterator[str]:
    names = [study["model"] for study in studies]
    yield _row("factor", *(f"{name}: rejected" for name in names), *(f"{name}: tighter" for name in names))
    yield _row(*["---"] * (2 * len(names) + 1))
    for place, first in enumerate(studies[0]["safeties"]):
        rows = [study["safeties"][place] for study in studies]
        rejected = [f"{row['rejected']} of {row['runs']:,}" for row in rows]
        yield _row(f"{first['safety']:g}", *rejected, *(_factor(row["tighter"]) for row in rows))


def _families(studies: list[dict[str, Any]]) -> Iterator[str]:
    yield _row("operator", "results", "exact", "largest share", "ULP, 99 %", "ULP, largest", "tighter", "in the middle")
    yield _row(*["---"] * 8)
    rows: dict[str, list[dict[str, Any]]] = {}
    for study in studies:
        for row in study["kinds"]:
            rows.setdefault(row["operator"], []).append(row)
    for name, found in sorted(rows.items()):
        share, ulp99, ulp = (f"{max(map(pick, found)):.3g}" for pick in COLUMNS)
        nodes, exact = (sum(row[key] for row in found) for key in ("nodes", "exact"))
        factors = [_factor(_mean(row[key] for row in found)) for key in ("tighter", "tighter_p50")]
        yield _row(f"`{name}`", nodes, exact, share, ulp99, ulp, *factors)


COLUMNS: Final = (lambda row: row["share"][-1], lambda row: row["ulp_p99"], lambda row: row["ulp"])


def _cheats(rows: list[dict[str, Any]]) -> Iterator[str]:
    regions = list(dict.fromkeys(row["region"] for row in rows))
    yield _row("model", "fraud", "inputs", *regions, "rejected operators", "answer changed")
    yield _row(*["---"] * (len(regions) + 5))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["cheat"]), []).append(row)
    for (model, cheat), found in groups.items():
        last = found[-1]
        yield _row(
            model,
            cheat,
            last["inputs"],
            *(row["objected"] for row in found),
            f"{last['operators']:.1f}",
            last["changed"],
        )
    frauds = [row for row in rows if row["region"] == regions[-1] and row["cheat"] != "honest"]
    count, seen = sum(row["inputs"] for row in frauds), sum(row["objected"] for row in frauds)
    low, high = clopper_pearson(seen, count)
    rate = f"[{low:.3f}, {high:.3f}]"
    yield f"\nThe calibrated threshold objected to {seen} of {count} fraudulent claims, a rate in {rate}."


def _searches(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield _row("model", "region", "inputs", "ties", "succeeded", "rate", "margin overcome, median", "largest")
    yield _row(*["---"] * 8)
    for row in rows:
        count = row["inputs"] - row["ties"]
        low, high = clopper_pearson(row["succeeded"], count) if count else (0.0, 1.0)
        gained = [f"{value:.2g}" for value in (median(row["gained"]), max(row["gained"]))]
        rate = f"[{low:.3f}, {high:.3f}]"
        yield _row(row["model"], row["region"], row["inputs"], row["ties"], row["succeeded"], rate, *gained)
    for region in dict.fromkeys(row["region"] for row in rows):
        yield _over_models(region, [row for row in rows if row["region"] == region])


def _over_models(region: str, rows: list[dict[str, Any]]) -> str:
    count, succeeded = sum(row["inputs"] - row["ties"] for row in rows), sum(row["succeeded"] for row in rows)
    low, high = clopper_pearson(succeeded, count) if count else (0.0, 1.0)
    return f"\nAll models, {region}: {succeeded} of {count}, a rate in [{low:.3f}, {high:.3f}]."


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _mean(factors: Iterable[float | None]) -> float | None:
    found = [factor for factor in factors if factor]
    return geometric_mean(found) if found else None


def _factor(value: float | None) -> str:
    if value is None:
        return "exact"
    return f"{value:,.0f}×" if value >= 10 else f"{value:.1f}×"
