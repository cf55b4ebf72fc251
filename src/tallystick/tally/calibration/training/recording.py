"""Records the runs of the study in a process of its own.

`python -m tallystick.tally.calibration.training.recording STACK JOB.json`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tallystick.recording.training import train
from tallystick.tally.calibration.training.honest import CORPUS_FILE, Case
from tallystick.tally.calibration.training.stacks import enter, stack_named


def record_runs(job: dict[str, Any]) -> None:
    """Record every case of the job into a run directory of its name; a finished run is not repeated."""
    folder = Path(job["folder"])
    source = folder / CORPUS_FILE
    for fields in job["cases"]:
        case = Case(**fields)
        out = folder / case.name
        if not (out / "claim.json").exists():
            train(case.recipe(), source if case.model == "llama" else None, out)


if __name__ == "__main__":
    enter(stack_named(sys.argv[1]))
    path = Path(sys.argv[2])
    record_runs(json.loads(path.read_text()))
    path.with_suffix(".out.json").write_text("[]")
