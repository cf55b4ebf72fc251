"""Commands that copy models keep freed memory, instead of having the same pages cleared again and again."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from tallystick.tally.cli.output import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(3):
    arrays = [np.ones(1 << 20) for _ in range(4)]
    del arrays
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    arrays = [np.ones(1 << 20) for _ in range(4)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a parameter of glibc")
def test_arrays_that_are_dropped_leave_their_pages_to_the_next_ones() -> None:
    assert faults("kept") < faults("returned") / 4
