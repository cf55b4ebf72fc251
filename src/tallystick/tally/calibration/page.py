"""Writes the page of a calibration, `docs/tolerances.md`, from the limits and the figures behind them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
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


def render_page(calibration: Calibration, figures: dict[str, Any]) -> str:
    """The page as Markdown: the prose of `page.txt` around the figures."""
    blocks = [_setting(calibration, figures), *_limits(calibration), *_power(figures), *_cheats(figures)]
    prose = resources.files(__package__).joinpath("page.txt").read_text("utf-8")
    return prose.replace("{figures}", "\n".join([*blocks, *_stacks(figures)]))


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
    times = {(c["family"], c["optimizer"], c["dtype"], c["window"], c["cheat"]): c["times_limit"] for c in late}
    heads = [f"{family} {optimizer} {dtype} {window}" for family, optimizer, dtype, window in keys]
    for family in FAMILIES:
        chosen = [(key, head) for key, head in zip(keys, heads, strict=True) if key[0] == family]
        rows = [[name, *(_times(times.get((*key, name))) for key, _ in chosen)] for name in names]
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
    by_key = {(r["family"], r["optimizer"], r["dtype"], r["window"], r["stack"]): r for r in late}
    for family in FAMILIES:
        chosen = [key for key in keys if key[0] == family]
        stacks = list(dict.fromkeys(row["stack"] for row in late if row["family"] == family))
        rows = [[stack, *(_drift(by_key.get((*key, stack))) for key in chosen)] for stack in stacks]
        yield f"{FAMILIES[family]}:\n"
        yield _table(["stack", *(f"{o} {d} {w}" for _, o, d, w in chosen)], rows)


def _drift(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['largest']['weights.overall']:.1e} ({row['same_bits']}/{row['segments']})"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'-|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"
