#!/usr/bin/env python3
"""Calibrate the operators of three real models, try every inference fraud on them, and write the two pages.

Usage: python -m research.operator_study [--out docs] [--only MODEL …] [--quick]

Writes <out>/calibration.md, <out>/inference_attacks.md, their data and the profiles <out>/data/profile-*.json. A model
that is not run keeps its figures. Exits 1 if an honest run is rejected, or an adversary succeeds inside the calibrated
region.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from research.operators.attacks import regions, search, try_cheats
from research.operators.page import render_attacks, render_calibration
from research.operators.workloads import MODELS, Model
from tallystick.tally.calibration.operators import calibrate_graph, figures_of
from tallystick.tally.calibration.stacks import machine
from tests.support.attacks.inference.nudge import Effort

COMMAND = "python -m research.operator_study"


@dataclass(frozen=True)
class Sizes:
    """Sets of inputs for calibration, for the frauds and for the adversary, and the adversary's starts on each."""

    calibration: int
    frauds: int
    searches: int
    restarts: int

    @property
    def effort(self) -> Effort:
        """How hard the adversary tries."""
        return Effort(restarts=self.restarts)


SIZES: Mapping[str, Sizes] = {
    "digits-cnn": Sizes(8985, 30, 100, 5),
    "demo-llama": Sizes(120, 10, 12, 2),
    "minilm": Sizes(32, 3, 6, 2),
}
QUICK: Mapping[str, Sizes] = {"digits-cnn": Sizes(8, 2, 2, 2)}


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--quick", action="store_true", help="a few inputs of the classifier, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=list(SIZES), help="these models; the others keep their figures")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else {name: SIZES[name] for name in arguments.only or SIZES}
    found = Figures.read(arguments.out / "data")
    for name, size in sizes.items():
        with tempfile.TemporaryDirectory() as folder:
            found = found.with_model(name, size, *study(name, size, Path(folder), arguments.out))
        write(arguments.out, found)
    return complain(found.cheats, found.searches)


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Figures:
    """What both pages show, in the order of `SIZES`: one calibration for each model, and rows of attacks on it."""

    calibrations: Rows
    cheats: Rows
    searches: Rows
    starts: Mapping[str, int]

    @classmethod
    def read(cls, data: Path) -> Figures:
        """The figures of before, or none."""
        if not (data / "calibration.json").is_file():
            return cls([], [], [], {})
        attacks = json.loads((data / "inference_attacks.json").read_text())
        calibrations = json.loads((data / "calibration.json").read_text())
        return cls(calibrations, attacks["cheats"], attacks["searches"], attacks["starts"])

    def with_model(self, model: str, size: Sizes, calibration: dict[str, Any], cheats: Rows, searches: Rows) -> Figures:
        """With the figures of one model measured anew."""
        return Figures(
            _replaced(self.calibrations, model, [calibration]),
            _replaced(self.cheats, model, cheats),
            _replaced(self.searches, model, searches),
            {**self.starts, model: size.restarts},
        )

    def attacks(self) -> dict[str, Any]:
        """The document of the attacks."""
        starts = {name: self.starts[name] for name in SIZES if name in self.starts}
        rows = {"cheats": self.cheats, "searches": self.searches}
        return {"machine": machine(), "effort": asdict(Effort()), "starts": starts, **rows}


def _replaced(rows: Rows, model: str, by: Rows) -> Rows:
    order = list(SIZES)
    return sorted([row for row in rows if row["model"] != model] + by, key=lambda row: order.index(row["model"]))


def study(name: str, size: Sizes, folder: Path, out: Path) -> tuple[dict[str, Any], Rows, Rows]:
    """Calibrate one model and attack it."""
    started = time.perf_counter()

    def tell(what: str) -> None:
        print(f"{time.perf_counter() - started:6.0f} s  {name}: {what}", file=sys.stderr, flush=True)

    model = MODELS[name](folder, max(size.calibration, size.frauds, size.searches))

    def with_inputs(count: int) -> Model:
        return replace(model, inputs=model.inputs[:count])

    program = with_inputs(size.calibration).write(folder / "program")
    found = calibrate_graph(program, program.parent / "inputs", folder / "study", tell)
    profile = out / "data" / f"profile-{name}.json"
    profile.parent.mkdir(parents=True, exist_ok=True)
    profile.write_bytes(found.profile.to_bytes() + b"\n")
    figures = {"model": name, **figures_of(found)}
    tell("calibrated")
    judges = regions(found.profile)
    cheats = try_cheats(with_inputs(size.frauds), judges, tell)
    searches = search(with_inputs(size.searches), judges, size.effort, tell)
    return figures, [asdict(row) for row in cheats], [asdict(row) for row in searches]


def write(out: Path, found: Figures) -> None:
    """Pages and data."""
    attacks = found.attacks()
    for name, value in (("calibration", found.calibrations), ("inference_attacks", attacks)):
        (out / "data" / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")
    (out / "calibration.md").write_text(render_calibration(found.calibrations, COMMAND))
    (out / "inference_attacks.md").write_text(render_attacks(attacks, COMMAND))


def complain(cheats: Rows, searches: Rows) -> int:
    """1 where something came out as it must not."""
    wrong = [f"{row['model']}: the {row['region']} rejects an honest run" for row in cheats if accused(row)]
    wrong += [f"{row['model']}: the calibrated region was left open" for row in searches if opened(row)]
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


def accused(row: Mapping[str, Any]) -> bool:
    """Whether an honest run was rejected."""
    return bool(row["cheat"] == "honest" and row["objected"])


def opened(row: Mapping[str, Any]) -> bool:
    """Whether an adversary succeeded inside a calibrated threshold."""
    return bool(row["region"] == "calibrated threshold" and row["succeeded"])


if __name__ == "__main__":
    sys.exit(main())
