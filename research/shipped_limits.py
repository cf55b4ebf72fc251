#!/usr/bin/env python3
"""Put measured tables of limits into the table that comes with the package.

Usage: python -m research.shipped_limits TABLE … [--name NAME] [--rows | --blocks] [--out DIR]

A TABLE is what `tally calibrate-answers` writes. Its limits take the place of those for models of the same precision
and size; all others stay. `python -m research.fingerprint_calibration` and `python -m research.real.distances` put
limits on rows into the shipped table in the same way. With --blocks, limits of blocks are added where there are none,
and all that are there stay. Writes <out>/src/tallystick/answers/fingerprints.json.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from tallystick.audits.answers.limits import FingerprintCalibration, MeasuredModels, RowLimits, shipped_calibration

TABLE: Final = Path("src/tallystick/answers/fingerprints.json")
Limits = TypeVar("Limits", bound=MeasuredModels)


def main() -> None:
    """Merge the tables that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--name", help="the model's name in the tables, where it is not that of its directory")
    parser.add_argument("--rows", action="store_true", help="limits on rows alone; those on tokens stay")
    parser.add_argument("--blocks", action="store_true", help="limits of blocks for which there are none")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    table = shipped_calibration()
    for path in options.tables:
        measured = FingerprintCalibration.from_bytes(path.read_bytes().strip(), str(path))
        measured = measured.model_copy(update={"tokens": ()}) if options.rows else measured
        measured = renamed(measured, options.name) if options.name else measured
        table = merged(table, with_blocks(table.rows, measured) if options.blocks else measured)
    write_table(table, options.out)


def merged(table: FingerprintCalibration, measured: FingerprintCalibration) -> FingerprintCalibration:
    """The table with the limits of another one, and where both were measured."""
    update = {
        "machine": _joined([table.machine, measured.machine], "; "),
        "software": _joined([table.software, measured.software], "; "),
        "stacks": tuple(dict.fromkeys([*table.stacks, *measured.stacks])),
        "held_out": tuple(dict.fromkeys([*table.held_out, *measured.held_out])),
        "rows": replaced(table.rows, measured.rows),
        "tokens": replaced(table.tokens, measured.tokens),
    }
    return table.model_copy(update=update)


def with_blocks(held: Sequence[RowLimits], measured: FingerprintCalibration) -> FingerprintCalibration:
    """The limits held for the size of a measured table, and those of its blocks for which there were none."""
    sizes = {size_of(each) for each in measured.rows}
    alike = [each for each in held if size_of(each) in sizes]
    known = {(each.tokens, each.layer_max) for each in alike if each.place == "block"}
    blocks = [each for each in measured.rows if each.place == "block" and (each.tokens, each.layer_max) not in known]
    rows = (*alike, *(_widened(each, alike) for each in blocks))
    return measured.model_copy(update={"rows": rows, "tokens": ()})


def _widened(limit: RowLimits, held: Sequence[RowLimits]) -> RowLimits:
    """A limit of blocks, no smaller than any that is held for earlier ones."""
    depth = math.inf if limit.layer_max is None else limit.layer_max
    earlier = [
        each
        for each in held
        if (each.place, each.tokens, each.dtype) == ("block", limit.tokens, limit.dtype)
        and each.layer_max is not None
        and each.layer_max <= depth
    ]
    update = {
        "largest": max(each.largest for each in (limit, *earlier)),
        "honest_largest": max(each.honest_largest for each in (limit, *earlier)),
    }
    return limit.model_copy(update=update)


def replaced(held: Sequence[Limits], measured: Sequence[Limits]) -> tuple[Limits, ...]:
    """The limits held, but for models of the sizes that were measured those measured."""
    sizes = {size_of(each) for each in measured}
    return (*(each for each in held if size_of(each) not in sizes), *measured)


def size_of(limits: MeasuredModels) -> tuple[str, int, int]:
    """For which models limits hold."""
    return limits.dtype, limits.layers, limits.width


def renamed(table: FingerprintCalibration, name: str) -> FingerprintCalibration:
    """The table with another name of its one model."""
    rows, tokens = (
        tuple(each.model_copy(update={"models": (name,)}) for each in limits) for limits in (table.rows, table.tokens)
    )
    return table.model_copy(update={"rows": rows, "tokens": tokens})


def write_table(table: FingerprintCalibration, out: Path) -> None:
    """Write the shipped table below a folder."""
    (out / TABLE).parent.mkdir(parents=True, exist_ok=True)
    (out / TABLE).write_bytes(table.to_bytes() + b"\n")


def _joined(values: Sequence[str], by: str) -> str:
    return by.join(dict.fromkeys(part for value in values for part in value.split(by)))


if __name__ == "__main__":
    main()
