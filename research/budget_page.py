"""The page of the budget study: how far errors that each stay within tolerance add up."""

from __future__ import annotations

import math
from typing import Any

from tallystick.verdicts.bounds import SAFETY

COMMAND = "python -m research.budget_study"


SIZES = (0.01, 0.03, 0.1, 0.2, 0.5, 1.0)


BUDGET_SAFETY = 2.0


Figures = dict[str, Any]


def rounded(value: Any) -> Any:
    """Figures with four digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *[[shown(cell) for cell in row] for row in rows]]
    return "\n".join("|" + "|".join(line) + "|" for line in lines)


def shown(value: Any) -> str:
    """One cell."""
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def percent(low_high: list[float]) -> str:
    """An interval."""
    return f"{low_high[0]:.1%} to {low_high[1]:.1%}"


def render(figures: Figures) -> str:
    """The page."""
    parts = [PAGE.format(command=COMMAND, machine=figures["machine"], safety=BUDGET_SAFETY, threshold=SAFETY)]
    parts += [render_case(case) for case in figures["cases"]]
    return "\n".join([*parts, render_remains(figures), render_costs(figures)])


def render_case(case: Figures) -> str:
    """Both tables of one graph."""
    left, budget = case["left_out"], case["budget"]
    stacks = table(
        ["stack", "operators", "convicted", "tied", "undecided", "one direction", "any direction", "path", "of which"],
        [[", ".join(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in case["stacks"]],
    )
    keys = ["kind", "size", "runs", "placed", "threshold", "bias", "path", "budget", "escaped", "moved"]
    last = "flips" if "flips" in case["adversaries"][0] else "update"
    head = ["alignment", "size, τ", *keys[2:], "… escaped"]
    head += ["answers changed", "… escaped"] if last == "flips" else ["update moved", "… escaped"]
    rows = [[row[key] for key in (*keys, "moved_escaped", last, f"{last}_escaped")] for row in case["adversaries"]]
    alike = "; ".join(", ".join(group) for group in case["groups"] if len(group) > 1) or "none"
    skipped = "; ".join(f"{name}: {why}" for name, why in case["skipped"].items()) or "none"
    return f"""
## {case["case"].capitalize()}

{case["operators"]} operators, {case["length"]} rounding ones on the longest path, {case["inputs"]} sets of inputs on
{len(case["stacks"])} stacks, of which {len(case["groups"])} gave different errors.

{stacks}

Stacks that gave the same errors: {alike}. Could not run: {skipped}.

With each group of stacks left out of the calibration in turn, {left["accused"]} of {left["runs"]} honest runs were
accused ({percent(left["interval"])}). Limits from all stacks: {budget["one_direction"]:.3g} in one direction,
{budget["any_direction"]:.3g} in any direction; path up to {budget["path"]:.3g}, for each result its own.

{table(head, rows)}
"""


def render_remains(figures: Figures) -> str:
    """What got through, in a sentence for each graph and alignment."""
    lines = []
    for case in figures["cases"]:
        for kind in dict.fromkeys(row["kind"] for row in case["adversaries"]):
            free = [row for row in case["adversaries"] if row["kind"] == kind and row["escaped"]]
            if not free:
                lines.append(f"- {case['case']}, {kind}: nothing from {SIZES[0]} τ on.")
                continue
            largest = max(free, key=lambda row: row["size"])
            what = f"{largest['size']} τ in {largest['escaped']} of {largest['runs']} runs"
            what += f"; outcome moved by {max(row['moved_escaped'] for row in free):.3g} of its size"
            if "flips" in largest:
                what += f", a margin by {max(row['margin_escaped'] for row in free):.3g} of itself"
                what += f", {sum(row['flips_escaped'] for row in free)} answers changed"
            else:
                what += f", an update of weights by {max(row['update_escaped'] for row in free):.3g} of itself"
            lines.append(f"- {case['case']}, {kind}: up to {what}.")
    return REMAINS.format(lines="\n".join(lines))


def render_costs(figures: Figures) -> str:
    """Proofs and seconds."""
    proofs, referee = figures["proofs"], figures["referee"]
    rows = [[row["producers"], row["hashes"], row["documents"]] for row in proofs["rows"]]
    sizes = table(["producers", "bytes of hashes", "bytes of documents in JSON"], rows)
    return f"""
## What a leaf costs

In a graph of {proofs["operators"]} operators, at most:

{sizes}

Opening and header of that graph have {proofs["statement"]} bytes; they are the same for all its leaves.

A ruling on a product of matrices of side {referee["side"]} takes {referee["whole"]:.3g} s over all of its elements and
{referee["sampled"]:.3g} s with a nonce ({referee["sampled_judged"]} elements and 20 vectors): the best of 3, with the
digests of all values. NumPy's product in float64 alone takes {referee["product"]:.3g} s.
"""


PAGE = """# The budget of a whole opening

Made by `{command}` on {machine}.
Data: [budget.json](data/budget.json).

The tolerance of an operator leaves room for errors. Errors that stay within it at every operator, but all point in one
direction, grow with L over L operators; honest errors grow with √L. `verdicts/opening/budget.py` measures two things
over a whole opening:

- **bias**: for each result, over its n elements, the mean m and the root mean square s of (claimed − exact) ÷ radius.
  Its score is m ÷ √(s²/n + (s/4)²): honest kernels have systematic errors, so a quarter of the size may be systematic,
  and no score exceeds 4. *One direction* is |Σ score| ÷ √N over N results, *any direction* the root mean square of the
  scores.
- **path**: ‖claimed − exact‖ ÷ ‖exact‖ of each result of the graph, exact being a run in float64 from the same inputs,
  in units of u√L, with L the rounding operators on the result's longest path.

Limits are {safety} times the largest that honest stacks showed, for each graph; they are statistics and no theorem.
What they reject goes to a committee, unless both parties agreed on the limits beforehand. `tally calibrate GRAPH
--inputs DIR --out FILE --budget FILE` makes the budget of any graph; challengers and judges of disputes read it with
`--budget`.

Honest runs are those of the stacks of `tally calibrate`, each computing the whole graph by itself; every operator is
also put to the referee, without thresholds (*convicted*, *tied*, *undecided*, and *of which* operators those convicted
are: IREE's sine and cosine lie outside of their bounds, as [bounds.md](bounds.md) says, and a prover who computes with
them is held to be wrong). Adversaries know the thresholds, τ: {threshold} times the largest error of any stack, by
rank, with a limit on the mean. They place every floating-point result that rounding can move so many τ from the exact
one on its own operands: all upwards (*one sign*), along the gradient of the margin of the second-best answer (*towards
another result*; a training step has no such gradient here), or at random as a control. A result whose digits do not
allow that is left out; *placed* is the smallest number of results that remained. *threshold* counts runs with a result
beyond its threshold, *bias*, *path* and *budget* count runs that the budget rejects, *escaped* counts runs that neither
rejects. *moved* is ‖Δ‖ ÷ ‖scores‖, or the relative change of the loss; *update moved* the largest ‖Δw‖ ÷ ‖step of w‖.
"""


REMAINS = """
## What remains possible

The largest errors, among the sizes tried, that neither thresholds nor budget rejected:

{lines}

An adversary who knows the limits can always stay just below them: it moves every result by up to its limit, in units of
u√L, and chooses the direction. So it can choose whatever is decided by little more than rounding: the answer if two
scores are that close, or the last digits of a loss. If only a few operators err in one direction, the bias averages
them with all others; only path and thresholds can detect them. Results after a choice that differs from the choice in
float64 are not compared. Nothing here was calibrated on hardware other than that named above: a budget holds for the
stacks that it was measured on.
"""
