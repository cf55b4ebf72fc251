#!/usr/bin/env python3
"""Capture, slice, replay and judge every architecture, and write docs/architectures.md.

Usage: python -m research.architecture_study [--out docs] [--only NAME ...] [--engines torch,jax,iree]

Writes <out>/architectures.md and <out>/data/architectures.json. With --only, rows of other architectures are kept from
the file that is there. Exits 1 if a graph is missing that should be captured, does not pass the door, or has other bits
in its replay, if an engine is too far off, or if an operator of an honest run is rejected.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from research.architectures.engines import ENGINES
from research.architectures.examine import Examination, examine, refused
from research.architectures.experts import REFUSED
from research.architectures.page import render
from research.architectures.subjects import FORWARD, STEP, names, subject
from tallystick.core.errors import UnavailableError
from tallystick.tally.calibration.stacks import machine

COMMAND = "python -m research.architecture_study"
PARTS = (FORWARD, STEP)


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--only", nargs="+", choices=names(), help="these architectures alone")
    parser.add_argument("--engines", default=",".join(ENGINES))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    path = arguments.out / "data" / "architectures.json"
    rows = {} if arguments.only is None or not path.is_file() else kept(path)
    missing = []
    for name in arguments.only or names():
        for part in PARTS:
            try:
                rows[name, part] = row_of(name, part, tuple(arguments.engines.split(",")))
            except UnavailableError as error:
                if name not in REFUSED:
                    missing.append(f"{name}, {part}: {error}")
                    continue
                rows[name, part] = as_json(refused(name, part, str(error)))
            write(arguments.out, path, rows)
    failures = [f"{row['architecture']}, {row['part']}: {line}" for row in rows.values() for line in row["failures"]]
    print("\n".join(missing + failures), file=sys.stderr)
    return int(bool(missing or failures))


def row_of(name: str, part: str, engines: tuple[str, ...]) -> dict[str, Any]:
    """One examination as JSON values."""
    started = time.perf_counter()
    found = examine(subject(name, part), engines)
    print(f"{time.perf_counter() - started:6.0f} s  {name}, {part}: {len(found.failures)} failures", file=sys.stderr)
    return as_json(found)


def as_json(found: Examination) -> dict[str, Any]:
    """An examination as the file of data holds it."""
    row: dict[str, Any] = json.loads(json.dumps(asdict(found)))
    return row | {"machine": machine()}


def kept(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of an earlier run."""
    held = json.loads(path.read_text())
    rows = [{"machine": held.get("machine", "")} | row for row in held["examinations"]]
    return {(row["architecture"], row["part"]): row for row in rows}


def write(out: Path, path: Path, rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Page and data, in the order of the table."""
    ordered = [rows[name, part] for name in names() for part in PARTS if (name, part) in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    machines = "; ".join(dict.fromkeys(row["machine"] for row in ordered))
    path.write_text(json.dumps({"examinations": ordered}, indent=1) + "\n")
    (out / "architectures.md").write_text(render(ordered, machines, COMMAND))


if __name__ == "__main__":
    sys.exit(main())
