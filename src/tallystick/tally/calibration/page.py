"""Writes the page of a calibration, `docs/tolerances.md`, from the limits and the figures behind them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tallystick.audits.limits import Calibration, LimitsEntry

FAMILIES = {"language": "Language models", "image": "The image classifier"}
CHECKS = (
    ("weights.overall", "residual"),
    ("weights.worst_tensor", "worst tensor"),
    ("weights.mismatch_share", "mismatches"),
    ("weights.element", "element"),
    ("weights.stretch", "stretch"),
    ("memory.overall", "memory"),
    ("loss", "loss"),
)

TOP = """# Tolerances: what honest stacks differ by, and what is caught beyond it

Written by `tally calibrate-training src/tallystick/audits/calibration.json --figures docs/data/power.json --page
docs/tolerances.md`: the limits that this version ships, and the figures they rest on.

A tolerant audit (`tally audit RUN --tolerant`) replays a segment from an **exact** anchor on another stack and asks
whether the claimed end lies within the limits below. All distances are relative to what the segment itself changed:

- **residual** ‖claimed − replayed‖ / ‖Δ‖ over all weights, and of the **worst tensor**; Δ is the replayed update.
- **mismatches**: the share of weights whose float16 bucket differs. **element**: the largest single difference in
  learning rates. **stretch**: how much longer or shorter the claimed update is along the replayed one.
- **memory**: the residual of optimizer moments and buffers. **loss**: in units of max(1, |loss|).

Two allowances are added to the limits and were subtracted before measuring. The first is half a float32 spacing of
every weight, relative to the update. It matters only if updates are tiny, as in the first steps of a long warm-up (a
residual of 0 below means: within half a spacing). The second is for elements whose gradient is only rounding (a bias in
front of a batch norm, the key bias of attention): Adam turns them into full steps in a direction that no replay
determines. The verifier finds them by their second moment in its own replay, counts them, and bounds them by the reach
screen; an audit that finds more than 5 % of them (bf16: 25 %) is inconclusive.
"""

READING = """## What cannot be told apart

- **fp32, language models**: over at most 8 steps every named cheat is at least twice beyond a limit. Smaller changes
  than those of the power table may pass.
- **Long segments**: sometimes training passes through a phase that amplifies a rounding difference a thousandfold. How
  far honest stacks lie apart after 32 steps depends on the segment, not on the stack: most stay near 1e-6 of the
  update, some reach 3e-4, and the limits have to let those pass. Keep anchors at most 8 steps apart if a run is to be
  audited on other stacks.
- **bf16**: two honest stacks differ by up to a few per cent of an update, because roundings of 2⁻⁸ differ in every
  matrix product, and sometimes a step amplifies the difference. One token in one step, gradient noise of a per cent and
  (AdamW) a learning rate 1 % too high lie inside that and pass. An audit of single steps detects undeclared rows,
  duplicated rows, swapped batches and a skipped step; over 32 steps no detection is claimed. Keep an anchor of every
  step that matters, or replay on the stack of the run: the exact mode there has no tolerance.
- **The image classifier**: ReLU and max pooling switch. When an activation lies within rounding of a switch, one stack
  takes the other branch and the two differ for the rest of the segment, in fp32 as well. The limits work well for
  single steps, less well for long segments.
- **First steps**: until Adam's second moment has settled, honest drift is larger. Segments that start before step 8
  have separate limits.
- **Few machines, small models.** Limits were measured on the machines named above, on models of 0.2 million (Llama
  style) and 0.01 million weights. A verifier with other hardware runs `tally calibrate-training LIMITS`, and `--also`
  keeps limits that were measured elsewhere. One with a larger model measures them on a run of that model:
  `tally calibrate-training LIMITS --run RUN`. `tally audit RUN --tolerant --calibration LIMITS` judges by either.
- float32 products below full precision (`float32_matmul_precision` "high" or "medium", TF32) are not within the fp32
  limits, because they are another arithmetic. The environment of a run records the setting.

## Another tolerance

The policy of a verifier may name another tolerance for opened states, instead of the residual: `mode = "tolerant"` and
`tolerance = "NAME"`. Losses and sketches are judged as before. `exact`, `bucket` (float16) and `dual` (float16 and a
grid) are included. Another Python package can add one by an entry point: a class without arguments that follows
`tallystick.verdicts.tolerance.Tolerance`:

    [project.entry-points."tallystick.tolerances"]
    mine = "my_package.mine:Mine"

The audit itself summarizes the claimed state and measures the distance of the replayed one; the prover has no choice in
it. If the class cannot be loaded, raises, or gives no finding, the audit is inconclusive.
"""


def render_page(calibration: Calibration, figures: dict[str, Any]) -> str:
    """The page as Markdown."""
    blocks = [TOP, _setting(calibration, figures), *_limits(calibration), *_power(figures), *_cheats(figures)]
    return "\n".join([*blocks, *_stacks(figures), READING])


def _setting(calibration: Calibration, figures: dict[str, Any]) -> str:
    stacks = [f"`{name}`" for name in calibration.stacks if name != "base"]
    held_out = [f"`{name}`" for name in calibration.held_out]
    return (
        "## Where and how\n\n"
        f"Machines: {calibration.machine}. PyTorch {calibration.torch}.\n\n"
        "The runs were recorded on `base` (CPU, one thread) and replayed, each in a fresh process, on\n"
        f"{', '.join(stacks)}.\n\n"
        f"Never calibrated on: {', '.join(held_out)}, and one seed of every run.\n\n"
        "Limits lie 4 times (single steps) or 8 times (longer segments) above the largest honest distance on any of\n"
        "these machines. A cheat counts as caught where it lies at least twice beyond a limit in every trial. The\n"
        f"tables of single stacks and named cheats are of the first machine (Python {figures['python']}).\n"
    )


def _limits(calibration: Calibration) -> Iterator[str]:
    yield "## Honest drift and limits\n"
    yield "Each cell: largest honest distance, in brackets that of held-out stacks and seeds, → limit.\n"
    for family, entries in groupby(calibration.entries, key=lambda entry: entry.family):
        yield f"### {FAMILIES[family]}\n"
        yield _table(
            ["optimizer", "precision", "steps ≤", "from step", "segments", *(title for _, title in CHECKS)],
            [[*_key(entry), *(_cell(entry, path) for path, _ in CHECKS)] for entry in entries],
        )


def _key(entry: LimitsEntry) -> list[str]:
    segments = f"{entry.honest_segments} ({entry.held_out_segments})"
    return [entry.optimizer, entry.dtype, str(entry.window), str(entry.from_step), segments]


def _cell(entry: LimitsEntry, path: str) -> str:
    limit = entry.loss_band if path == "loss" else _limit(entry, path)
    return f"{entry.honest_max[path]:.1e} ({entry.held_out_max.get(path, 0.0):.1e}) → {limit:.1e}"


def _limit(entry: LimitsEntry, path: str) -> float:
    group, name = path.split(".")
    limits: dict[str, float] = getattr(entry, group).model_dump()
    return limits[name]


def _power(figures: dict[str, Any]) -> Iterator[str]:
    yield "## Power: the smallest change that is caught\n"
    yield (
        f"Language models on {figures['ladders_machine']}.\n"
        "A trial is one segment, one random choice of tokens, rows or noise, and one held-out stack.\n"
        "A batch has 8 rows of 32 tokens; rates and noise are shares of the declared rate and of the gradient's norm.\n"
        "A size counts for 95 % (99 %) when its count shows that share with 95 % confidence on one side; brackets\n"
        "give the two-sided 95 % Clopper–Pearson interval. A size that can no longer show 95 % is given up.\n"
    )
    rows = [
        [ladder["optimizer"], ladder["dtype"], str(ladder["window"]), ladder["kind"], *_rates(ladder), _missed(ladder)]
        for ladder in figures["ladders"]
    ]
    yield _table(["optimizer", "precision", "steps", "change", "95 %", "99 %", "next smaller size, caught"], rows)


def _rates(ladder: dict[str, Any]) -> Iterator[str]:
    for share in ("0.95", "0.99"):
        size = ladder["smallest"][share]
        yield next((_rate(rate) for rate in ladder["rates"] if rate["size"] == size), "not shown")


def _rate(rate: dict[str, Any]) -> str:
    low, high = rate["interval"]
    return f"{rate['size']:g}: {rate['caught']}/{rate['tried']} [{low:.3f}, {high:.3f}]"


def _missed(ladder: dict[str, Any]) -> str:
    size = ladder["smallest"]["0.95"]
    below = [rate for rate in ladder["rates"] if size is None or rate["size"] < size]
    return f"{below[-1]['size']:g}: {below[-1]['caught']}/{below[-1]['tried']}, given up" if below else "–"


def _cheats(figures: dict[str, Any]) -> Iterator[str]:
    yield (
        "## Named cheats\n\nHow many times the limit the cheat lies at in the trial where it shows least, over runs "
        "and held-out\nstacks; below 2 the claim to catch it is withdrawn (–). Segments that start at step 32.\n"
    )
    late = [cheat for cheat in figures["cheats"] if cheat["from_step"]]
    keys = sorted({(c["family"], c["optimizer"], c["dtype"], c["window"]) for c in late}, key=_order)
    names = list(dict.fromkeys(cheat["cheat"] for cheat in late))
    found = {(c["family"], c["optimizer"], c["dtype"], c["window"], c["cheat"]): c["times_limit"] for c in late}
    heads = [f"{family} {optimizer} {dtype} {window}" for family, optimizer, dtype, window in keys]
    for family in FAMILIES:
        chosen = [(key, head) for key, head in zip(keys, heads, strict=True) if key[0] == family]
        rows = [[name, *(_times(found.get((*key, name))) for key, _ in chosen)] for name in names]
        yield f"{FAMILIES[family]}:\n"
        yield _table(["cheat", *(head.removeprefix(f"{family} ") for _, head in chosen)], rows)


def _order(key: tuple[str, str, str, int]) -> tuple[bool, str, bool, int]:
    family, optimizer, dtype, window = key
    return family != "language", optimizer, dtype != "fp32", window


def _times(value: float | None) -> str:
    if value is None:
        return ""
    return "–" if value < 2 else f"{value:.0f}×"


def _stacks(figures: dict[str, Any]) -> Iterator[str]:
    yield (
        "## Every stack\n\nLargest residual of the weights over segments from step 8 on, and in brackets how many of "
        "these\nended with the same bits as on `base`: a switch with no effect is no evidence.\n"
    )
    late = [row for row in figures["honest"] if row["late"]]
    keys = sorted({(r["family"], r["optimizer"], r["dtype"], r["window"]) for r in late}, key=_order)
    found = {(r["family"], r["optimizer"], r["dtype"], r["window"], r["stack"]): r for r in late}
    for family in FAMILIES:
        chosen = [key for key in keys if key[0] == family]
        stacks = list(dict.fromkeys(row["stack"] for row in late if row["family"] == family))
        rows = [[stack, *(_drift(found.get((*key, stack))) for key in chosen)] for stack in stacks]
        yield f"{FAMILIES[family]}:\n"
        yield _table(["stack", *(f"{o} {d} {w}" for _, o, d, w in chosen)], rows)


def _drift(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['largest']['weights.overall']:.1e} ({row['same_bits']}/{row['segments']})"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'-|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"
