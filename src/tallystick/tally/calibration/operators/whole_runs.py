"""Runs a whole graph on one stack, in a process of its own, and measures how its errors add up.

`python -m tallystick.tally.calibration.operators.whole_runs STACK JOB.json` writes beside the job, for every set of
inputs, the statistics for a budget; or the reason why this stack cannot run the graph.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tallystick.core.errors import UnavailableError
from tallystick.programs.files import load_program
from tallystick.tally.calibration.operators.stacks import all_values, engine_of, input_sets, stack_named
from tallystick.verdicts.opening.budget import Accumulated, OperatorBias, PathError, accumulate


def main(stack_name: str, job: Path) -> None:
    """Run every set of inputs on one stack and write the statistics of the runs."""
    wanted = json.loads(job.read_text())
    graph, constants = load_program(Path(wanted["program"]))
    shared, sets = input_sets(graph, constants, Path(wanted["inputs"]))
    engine = engine_of(stack_named(stack_name), graph)
    try:
        runs = [accumulate(graph, all_values(graph, {**shared, **inputs}, engine).get) for inputs in sets]
        rows: list[dict[str, Any]] = [asdict(run) for run in runs]
    except UnavailableError as error:
        rows = [{"skipped": str(error)}]
    job.with_suffix(".out.json").write_text(json.dumps(rows))


def read_run(row: Mapping[str, Any]) -> Accumulated:
    """Read the statistics of one run as `main` writes them."""
    biases = tuple(OperatorBias(**each) for each in row["biases"])
    path_errors = tuple(PathError(**each) for each in row["path_errors"])
    return Accumulated(biases, path_errors, tuple(row["unavailable"]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
