"""Appending to a log of 10⁶ records ÷ to one of 10³, opening a record with its proof, memory and bytes.

The unit is 256 appends of a real step record (a whole tile), each to its log file, its index and its tree. Both logs
grow with every unit; the median of per-round ratios by CPU time. An opening reads one record and the tiles of its
inclusion proof from files, with nothing held from before, and checks the proof against the root; its interval is that
of the median over random positions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Interval, interval, median_ratio, take_rounds, time_arm, total_ratio
from tallystick.commitments import digest
from tallystick.store.log import LogWriter, open_line
from tallystick.transcripts import Batch, Log, StateSummary, StepRecord, TraceEntry, encode_sketch

UNIT = 256


def figures(quick: bool) -> Iterator[Figure]:
    large, rng = (100_000 if quick else 1_000_000), random.Random(5)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "large" / "transcript.jsonl"
        before = _resident_bytes()
        writer, small = _filled(path, large), _filled(Path(folder) / "small" / "transcript.jsonl", 1000)
        grown = _resident_bytes() - before
        yield from _appends(writer, small, 20 if quick else 200, rng)
        log = writer.close()
        small.close()
        yield from _openings(path, log, 50 if quick else 500, rng)
        yield _figure("memory", f"resident memory added by a log of {large} records", grown / 2**20, "MiB")
        stored = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file()) / log.size
        yield _figure("bytes", "bytes stored per step: record, place in the index, tiles", stored, "bytes")
        trace = TraceEntry(step=500_000, seconds=0.512345, recording_seconds=0.001234).to_bytes()
        yield _figure("trace", "bytes stored per step of the timeline", len(trace) + stored - len(_record()), "bytes")


def _appends(large: LogWriter, small: LogWriter, count: int, rng: random.Random) -> Iterator[Figure]:
    line = _record()
    arms = {
        "large": lambda: _append(large, line),
        "small": lambda: _append(small, line),
        "small again": lambda: _append(small, line),
    }
    sizes = {"records_at_start": [large.frontier.size, small.frontier.size]}
    rounds = take_rounds(arms, count, rng)
    details = {
        "total": interval(rounds, total_ratio("large", "small", "cpu"), rng),
        "small ÷ small": interval(rounds, median_ratio("small again", "small", "cpu"), rng),
        "microseconds_per_append": 1e6 * median(spent["large"].cpu for spent in rounds) / UNIT,
        "records_in_small_at_end": small.frontier.size,
        **sizes,
    }
    value = interval(rounds, median_ratio("large", "small", "cpu"), rng)
    what = "appending to 10⁶ records ÷ to 10³"
    is_void = 1.0 not in details["small ÷ small"]  # type: ignore[operator]
    yield Figure("transcript_scale: append", what, value, count, "CPU", "×", Goal(1.1), is_void, details)


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
    writer, line = LogWriter(path), _record()
    for _ in range(count):
        writer.append(line)
    return writer


def _append(writer: LogWriter, line: bytes) -> None:
    for _ in range(UNIT):
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
