"""What the first steps took for a moment goes back to the system: resident memory is read, no clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
from tallystick.recording.loop.self_check import trim_heap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

blocks = [np.ones(1 << 13) for _ in range(2000)]  # 131 MB in pieces that the C library keeps for itself
last = np.ones(1 << 13)  # behind them, so that they are not the end of what it has
taken = resident()
del blocks
if sys.argv[1] == "given back":
    trim_heap()
print(taken - resident())
"""


def returned(how: str) -> int:
    command = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from /proc, and a call of glibc")
def test_freed_memory_is_given_back() -> None:
    if returned("kept") > 32 << 20:
        pytest.skip("this C library keeps no freed memory")
    assert returned("given back") > 100 << 20
