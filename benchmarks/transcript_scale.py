"""Appending to a log of 10⁶ records ÷ to one of 10³, opening a record with its proof, memory and bytes.

The unit is 256 appends of a real step record (a whole tile), each to its log file, its index and its tree; the small
log is begun anew before it outgrows 2,000 records. The median of per-round ratios by CPU time. An opening reads one
record and the tiles of its inclusion proof from files, with nothing held from before, and checks the proof against the
root; its interval is that of the median over random positions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Arm, Interval, interval, median_ratio, take_rounds, time_arm, total_ratio
from tallystick.core.digests import digest
from tallystick.formats.claims import Log
from tallystick.formats.records import Batch, StateSummary, StepRecord, TraceEntry, encode_sketch
from tallystick.formats.store.log import LogWriter, open_line

UNIT = 256


class SmallLog:
    """A log that is begun anew, outside the clocks, before it outgrows 2,000 records."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._begun = folder, 0
        self.writer = self._begin()

    def renew(self) -> None:
        """Begin a new log of 1,000 records if need be."""
        if self.writer.frontier.size + UNIT > 2000:
            self.writer = self._begin()

    def append(self) -> None:
        """One unit."""
        _append(self.writer)

    def _begin(self) -> LogWriter:
        self._begun += 1
        return _filled(self._folder / str(self._begun) / "transcript.jsonl", 1000)


def figures(quick: bool) -> Iterator[Figure]:
    large, rng = (100_000 if quick else 1_000_000), random.Random(5)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "large" / "transcript.jsonl"
        before = _resident_bytes()
        writer = _filled(path, large)
        grown = _resident_bytes() - before
        yield from _appends(writer, SmallLog(Path(folder) / "small"), 20 if quick else 200, rng)
        log = writer.close()
        yield from _openings(path, log, 50 if quick else 500, rng)
        yield _figure("memory", f"resident memory added by a log of {large} records", grown / 2**20, "MiB")
        stored = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file()) / log.size
        yield _figure("bytes", "bytes stored per step: record, place in the index, tiles", stored, "bytes")
        trace = TraceEntry(step=500_000, seconds=0.512345, recording_seconds=0.001234).to_bytes()
        yield _figure("trace", "bytes stored per step of the timeline", len(trace) + stored - len(_record()), "bytes")


def _appends(large: LogWriter, small: SmallLog, count: int, rng: random.Random) -> Iterator[Figure]:
    arms: dict[str, Arm] = {"large": partial(_append, large), "small": small.append, "small again": small.append}
    size = large.frontier.size
    rounds = take_rounds(arms, count, rng, between=small.renew)
    again = interval(rounds, median_ratio("small again", "small", "cpu"), rng)
    details = {
        "total": interval(rounds, total_ratio("large", "small", "cpu"), rng),
        "small ÷ small": again,
        "microseconds_per_append": 1e6 * median(spent["large"].cpu for spent in rounds) / UNIT,
    }
    value = interval(rounds, median_ratio("large", "small", "cpu"), rng)
    what = f"appending to {size:,} records ÷ to 1,000"
    yield Figure("transcript_scale: append", what, value, count, "CPU", "×", Goal(1.1), 1.0 not in again, details)


def _openings(path: Path, log: Log, count: int, rng: random.Random) -> Iterator[Figure]:
    places = [rng.randrange(log.size) for _ in range(count)]
    spent = [{"open": time_arm(partial(_open_and_check, path, log, index))} for index in places]
    milliseconds = [1e3 * seen["open"].wall for seen in spent]
    value = interval(spent, lambda seen: 1e3 * median(s["open"].wall for s in seen), rng)
    details = {"p99_ms": quantiles(milliseconds, n=100)[-1], "worst_ms": max(milliseconds)}
    what = f"opening one of {log.size} records with its proof, and checking it"
    yield Figure("transcript_scale: open", what, value, count, "wall", "ms", Goal(50.0), details=details)


def _open_and_check(path: Path, log: Log, index: int) -> None:
    open_line(path, index, log.size).check(log)


def _filled(path: Path, count: int) -> LogWriter:
    writer = LogWriter(path)
    _append(writer, count)
    return writer


def _append(writer: LogWriter, count: int = UNIT) -> None:
    line = _record()
    for _ in range(count):
        writer.append(line)


def _record() -> bytes:
    """A step record as training writes it: a batch of 16, and a projection before and after."""
    sketch = StateSummary(projection=encode_sketch(bytes(range(64))))
    return StepRecord(
        index=500_000,
        data=digest("dataset", b""),
        batch=Batch(indices=tuple(range(1000, 1016))),
        pre=sketch,
        post=sketch,
        loss=3.1416,
        gradient_norm=0.123456789012,
        learning_rate=1e-3,
    ).to_bytes()


def _figure(name: str, what: str, value: float, unit: str) -> Figure:
    return Figure(f"transcript_scale: {name}", what, Interval(value, value, value), 1, "count", unit)


def _resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096
