"""The pages of a calibration and of the attacks: `docs/calibration.md` and `docs/inference_attacks.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import geometric_mean
from typing import Any

from tallystick.tolerances.confidence import clopper_pearson

CALIBRATION = """# Calibration: how far honest operators lie from the exact result

Written by `{command}`; every figure is in `data/calibration.json`.

Each operator is run on **identical inputs** on every stack, and its result is compared with the exact one: the
operator's definition in float64. The unit is the **share** of its deterministic bound. A threshold is {safety:g} times
the largest share seen, at four percentiles (50, 90, 99 and 100 % of the elements), with the mean share as a measure of
bias; it is never wider than the bound. Machine: {machine}. Stacks: {stacks}.
"""

LEFT_OUT = """
## A stack that was not calibrated on

Thresholds from all other stacks and every second set of inputs judge the remaining sets on the stack left out. A run is
rejected if one operator is. *Used* is the largest share of a threshold that any operator of these runs took.
"""

FAMILIES = """
## How much tighter than the bound

Per operator over all its nodes in the three models: the largest share of the deterministic bound on any stack, errors
in units in the last place, and 1 ÷ the threshold, as a geometric mean over nodes. Nodes whose results are exact
everywhere are counted apart: their threshold is equality.
"""

ATTACKS = """# Inference frauds, and a bound-aware adversary

Written by `{command}`; every figure is in `data/inference_attacks.json`.

The claim is a graph, its weights and its inputs; the prover opens every value of the run, and a verifier judges each
operator on its claimed inputs. Models: the digits classifier and the language model of the demo, both trained, and
MiniLM with its published weights. One input at a time; intervals are Clopper–Pearson at 95 %. Machine: {machine}.
"""

CHEATED = """
## Other work than was committed

Weights and inputs of the claim are the committed ones: their digests are known. *Objected*: inputs on which at least
one operator was rejected. *Answer changed*: how often the fraud changed the final decision at all.
"""

SEARCHED = """
## Moving every operator within what is allowed

The adversary knows the region and moves every result inside it, by {steps} steps of projected ascent from {restarts}
starts (Madry et al. 2018), towards the second-best answer. It succeeds where the answer changes and the judge accepts
every operator. *Margin overcome* is the most it gained of the distance to another answer, over all inputs.
"""

REMAINS = """
## What remains possible

- The deterministic bound is a theorem about any order of evaluation, and that wide: where the table shows successes, a
  prover who spends it on every operator changes answers, and no judgement by that bound alone will notice.
- Inside a calibrated threshold the adversary moved answers as far as the last column says. An input whose honest margin
  is smaller than that can be flipped; a tie between two answers is not the verifier's to decide.
- The search is by gradient and finite. It shows what was reached, and is no proof that nothing more can be.
"""


def render_calibration(studies: Iterable[dict[str, Any]], command: str) -> str:
    """The page of thresholds."""
    studies = list(studies)
    first = studies[0]
    head = CALIBRATION.format(
        command=command, safety=first["safety"], machine="; ".join(first["machines"]), stacks=", ".join(first["stacks"])
    )
    parts = [head, *_models(studies), LEFT_OUT, *_left_out(studies), FAMILIES, *_families(studies)]
    return "\n".join(parts) + "\n"


def render_attacks(figures: dict[str, Any], command: str) -> str:
    """The page of attacks."""
    head = ATTACKS.format(command=command, machine=figures["machine"])
    searched = SEARCHED.format(**figures["effort"])
    return "\n".join([head, CHEATED, *_cheats(figures["cheats"]), searched, *_searches(figures["searches"]), REMAINS])


def _models(studies: list[dict[str, Any]]) -> Iterator[str]:
    yield "| model | operators | sets of inputs | graph |\n|---|---|---|---|"
    for study in studies:
        yield f"| {study['model']} | {study['operators']} | {study['inputs']} | `{study['graph'][:19]}…` |"


def _left_out(studies: list[dict[str, Any]]) -> Iterator[str]:
    yield "| model | stack left out | runs | rejected | false-reject rate, 95 % | used |\n|---|---|---|---|---|---|"
    for study in studies:
        for row in study["left_out"]:
            rate = f"[{row['rate_low']:.4f}, {row['rate_high']:.4f}]"
            cells = (study["model"], row["stack"], row["runs"], row["rejected"], rate, f"{row['worst']:.2f}")
            yield f"| {' | '.join(map(str, cells))} |"
    rows = [row for study in studies for row in study["left_out"]]
    runs, rejected = sum(row["runs"] for row in rows), sum(row["rejected"] for row in rows)
    low, high = clopper_pearson(rejected, runs)
    yield f"\nAll together: {rejected} of {runs} runs rejected, a rate in [{low:.5f}, {high:.5f}]."


def _families(studies: list[dict[str, Any]]) -> Iterator[str]:
    yield "| operator | nodes | exact | largest share | ULP, 99 % | ULP, largest | tighter |"
    yield "|---|---|---|---|---|---|---|"
    rows: dict[str, list[dict[str, Any]]] = {}
    for study in studies:
        for row in study["kinds"]:
            rows.setdefault(row["operator"], []).append(row)
    for name, found in sorted(rows.items()):
        tighter = [row["tighter"] for row in found if row["tighter"]]
        factor = f"{geometric_mean(tighter):,.0f}×" if tighter else "exact"
        share, ulp99, ulp = (max(row[key] if key != "share" else row[key][-1] for row in found) for key in COLUMNS)
        nodes, exact = (sum(row[key] for row in found) for key in ("nodes", "exact"))
        yield f"| `{name}` | {nodes} | {exact} | {share:.2g} | {ulp99:.3g} | {ulp:.3g} | {factor} |"
    every = [row["tighter"] for found in rows.values() for row in found if row["tighter"]]
    yield f"\nGeometric mean over operators: {geometric_mean(every):,.0f}×."


COLUMNS = ("share", "ulp_p99", "ulp")


def _cheats(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| model | fraud | judged by | inputs | objected | rate, 95 % | operators objected to | answer changed |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        low, high = clopper_pearson(row["objected"], row["inputs"])
        yield (
            f"| {row['model']} | {row['cheat']} | {row['region']} | {row['inputs']} | {row['objected']} "
            f"| [{low:.2f}, {high:.2f}] | {row['operators']:.1f} | {row['changed']} |"
        )


def _searches(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| model | region | inputs | succeeded | rate, 95 % | margin overcome |\n|---|---|---|---|---|---|"
    for row in rows:
        low, high = clopper_pearson(row["succeeded"], row["inputs"])
        yield (
            f"| {row['model']} | {row['region']} | {row['inputs']} | {row['succeeded']} "
            f"| [{low:.3f}, {high:.3f}] | {row['gained']:.3g} |"
        )
