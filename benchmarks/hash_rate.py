"""The digest of 1 GiB of tensors, by all cores ÷ SHA-256 of the same bytes by hashlib in one thread.

The rate counts, so a larger ratio is better; the goal is 0.95 of the number of cores. Beside it stands what the machine
itself gains from a second thread: plain hashlib in as many threads as there are cores, over the same bytes in the same
rounds. `file` is a safetensors file in the page cache, digested over its mapping. Rounds of all arms in random order;
the median of per-round ratios by the wall clock, because threads are the point.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.figure import Figure, Goal
from benchmarks.measure import interval, median_ratio, take_rounds
from tallystick.core.safetensors import write_state
from tallystick.core.tensor_digests import digest_file, state_digest
from tallystick.core.tensors import Tensor

ONE, ALL, MAPPED = "hashlib, one thread", "hashlib, all cores", "hashlib over the mapping"
CORES = os.cpu_count() or 1
GOAL = Goal(0.95 * CORES, at_most=False)
PER_CORE = Goal(0.95, at_most=False)
TENSORS = 8
COMPARED = (
    ("tensors, all cores", ONE, "rate of the state digest by all cores ÷ hashlib in one thread", GOAL),
    ("file", MAPPED, "rate of a file's digest by all cores ÷ hashlib over the mapping in one thread", GOAL),
    ("tensors, one thread", ONE, "rate of the state digest in one thread ÷ hashlib in one thread", PER_CORE),
    ("tensors against all cores", ALL, "rate of the state digest by all cores ÷ plain hashlib by all cores", PER_CORE),
    (ALL, ONE, "rate of plain hashlib by all cores ÷ in one thread: what the machine gives", None),
)


def figures(quick: bool) -> Iterator[Figure]:
    size, count, rng = (1 << 26 if quick else 1 << 30), (4 if quick else 12), random.Random(3)
    values = np.random.default_rng(3).integers(0, 256, size, np.uint8).view(np.float32)
    state = {f"tensor.{index}": Tensor.of(part) for index, part in enumerate(np.split(values, TENSORS))}
    data = values.view(np.uint8).data
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        write_state(path, state)
        arms = {
            ONE: lambda: hashlib.sha256(data).digest(),
            MAPPED: lambda: _hash_mapping(path),
            ALL: lambda: _hash_in_parts(data),
            "tensors, all cores": lambda: state_digest(state),
            "tensors, one thread": lambda: state_digest(state, threads=1),
            "file": lambda: digest_file(path),
        }
        rounds = take_rounds(arms, count, rng)
    least = {f"{name}, GB/s": size / 1e9 / min(spent[name].wall for spent in rounds) for name in arms}
    details = {**least, "cores": CORES, "bytes": size}
    for name, bare, what, goal in COMPARED:
        value = interval(rounds, median_ratio(bare, name.replace(" against", ","), "wall"), rng)
        yield Figure(f"hash_rate: {name}", what, value, count, "wall", "×", goal, details=details)


def _hash_in_parts(data: memoryview) -> list[bytes]:
    part = data.nbytes // CORES
    with ThreadPoolExecutor(CORES) as pool:
        return list(
            pool.map(lambda start: hashlib.sha256(data[start : start + part]).digest(), range(0, data.nbytes, part))
        )


def _hash_mapping(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return hashlib.sha256(data).digest()
