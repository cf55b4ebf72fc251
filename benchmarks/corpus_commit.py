"""Committing to a corpus of 10 GB in 64 shards ÷ SHA-256 of the same bytes by hashlib in one thread.

The rate counts, so a larger ratio is better; the goal is 0.8. Both arms read the files in blocks of 1 MiB, in rounds of
random order after one that is not counted; what fits into the page cache is read from there by both. Beside the wall
clock stands CPU time of all threads, by which less than 1 says what the commit adds to plain hashing. The memory is the
largest resident set of a process of its own that does nothing but the commit, once.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Interval, interval, median_ratio, take_rounds
from tallystick.formats.data.corpus import hash_shards, list_shards

PLAIN, COMMIT, ONE = "hashlib, one thread", "commit", "commit, one thread"
RATE = Goal(0.8, at_most=False)
MEMORY = Goal(500)
SHARDS = 64
BLOCK = 1 << 20
ALONE = """
import resource, sys
from pathlib import Path
from tallystick.formats.data.corpus import commit_corpus
commit_corpus(Path(sys.argv[1]), Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def figures(quick: bool) -> Iterator[Figure]:
    size, count, rng = (10**8 if quick else 10**10), 3, random.Random(11)
    with TemporaryDirectory() as name:
        corpus = Path(name) / "corpus"
        made = _make(corpus, size)
        arms = {
            PLAIN: lambda: _hash_plainly(corpus),
            COMMIT: lambda: _commit(corpus, None),
            ONE: lambda: _commit(corpus, 1),
        }
        rounds = take_rounds(arms, count, rng)
        memory = _memory(corpus, Path(name) / "commit.json")
    rates = {f"{arm}, GB/s": made / 1e9 / min(spent[arm].wall for spent in rounds) for arm in arms}
    details = {**rates, "bytes": made, "shards": SHARDS}
    compared = (
        (COMMIT, "wall", "rate of the commit by all cores ÷ hashlib over the same files in one thread"),
        (ONE, "wall", "rate of the commit in one thread ÷ hashlib over the same files in one thread"),
        (COMMIT, "cpu", "CPU seconds of hashlib ÷ those of the commit by all cores"),
    )
    for arm, clock, what in compared:
        value = interval(rounds, median_ratio(PLAIN, arm, clock), rng)  # type: ignore[arg-type]
        yield Figure(f"corpus_commit: {arm}, {clock}", what, value, count, clock, "×", RATE, details=details)
    peak = Interval(memory, memory, memory)
    yield Figure("corpus_commit: memory", "largest resident set of the commit", peak, 1, "count", "MB", MEMORY)


def _make(corpus: Path, size: int) -> int:
    """Shards of JSONL with random letters, nearly of one size; the number of their bytes."""
    corpus.mkdir()
    letters = np.random.default_rng(5).integers(97, 123, BLOCK, np.uint8)
    made = 0
    for index in range(SHARDS):
        with (corpus / f"shard-{index:05}.jsonl").open("wb") as file:
            for block in range(size // SHARDS // BLOCK + 1):
                text = np.roll(letters, index * 7919 + block).tobytes()
                made += file.write(b'{"text":"' + text + b'"}\n')
    return made


def _hash_plainly(corpus: Path) -> None:
    block = memoryview(bytearray(BLOCK))
    for path in sorted(corpus.iterdir()):
        hashed = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(block):
                hashed.update(block[:count])
        hashed.digest()


def _commit(corpus: Path, threads: int | None) -> None:
    for _ in hash_shards(list_shards(corpus), threads=threads):
        pass


def _memory(corpus: Path, out: Path) -> float:
    command = [sys.executable, "-c", ALONE, str(corpus), str(out)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1e3
