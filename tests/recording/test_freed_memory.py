"""What the first steps took for a moment goes back to the system: resident memory is read, no clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os
import numpy as np
from tallystick.recording.loop.self_check import trim_heap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def measure(how):
    blocks = [np.ones(1 << 13) for _ in range(2000)]  # 131 MB in pieces that the C library keeps for itself
    last = np.ones(1 << 13)  # behind them, so that they are not the end of what it has
    taken = resident()
    del blocks
    if how == "given back":
        trim_heap()
    print(taken - resident(), flush=True)

for how in ("kept", "given back"):
    if os.fork() == 0:
        measure(how)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from /proc, and a call of glibc")
def test_freed_memory_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    kept, given_back = (int(line) for line in done.stdout.split())
    if kept > 32 << 20:
        pytest.skip("this C library keeps no freed memory")
    assert given_back > 100 << 20
