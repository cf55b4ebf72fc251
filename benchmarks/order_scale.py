"""The order of 10⁸ windows: CPU seconds until the first batch and for the next one, and the largest resident set.

A process of its own makes the plan of a run with 1,000 windows for validation and 512 in a batch, and takes the batches
of steps 1 and 2. The permutations are drawn at the first batch, and one of them again in every epoch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Interval

MEMORY = Goal(16_000)
ALONE = """
import json, resource, sys, time
from tallystick.formats.data.samples import BatchPlan
plan = BatchPlan("sha256:" + "0" * 64, 7, int(sys.argv[1]), 1000, 512)
marks = [time.process_time()]
for step in (1, 2):
    plan.indices(step)
    marks.append(time.process_time())
print(json.dumps([marks[1] - marks[0], marks[2] - marks[1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3]))
"""


def figures(quick: bool) -> Iterator[Figure]:
    windows = 10**6 if quick else 10**8
    command = [sys.executable, "-c", ALONE, str(windows)]
    first, second, memory = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    details = {"windows": windows}
    for name, value, unit, goal in (
        ("first batch", first, "s", None),
        ("second batch", second, "s", None),
        ("memory", memory, "MB", MEMORY),
    ):
        what = f"{name}, {windows:,} windows"
        yield Figure(f"order_scale: {name}", what, Interval(value, value, value), 1, "cpu", unit, goal, details=details)
