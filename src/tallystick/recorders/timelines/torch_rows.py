"""What a trace of torch.profiler (Kineto) holds, as rows in order of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

from tallystick.errors import MalformedError
from tallystick.recorders.timelines.chrome_entries import ChromeFile, chrome_file
from tallystick.recorders.timelines.graph_names import key, work
from tallystick.recorders.timelines.sorted_rows import Row, SortedRows

SPAN: Final = "span"
OPERATOR: Final = "operator"
LAUNCH: Final = "launch"
DEVICE: Final = "device"
MEMORY: Final = "memory"
CATEGORIES: Final = {
    "user_annotation": SPAN,
    "cpu_op": OPERATOR,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "kernel": DEVICE,
    "gpu_memcpy": DEVICE,
    "gpu_memset": DEVICE,
    "cpu_instant_event": MEMORY,
}
TIME_MAX: Final = 1 << 62


@dataclass(frozen=True)
class DevicePlaces:
    """The devices that the numbers in the files of a profiler mean: those of `host`, or of a rank of a group."""

    host: str
    ranks: Mapping[int, str] = field(default_factory=dict)

    def gpu(self, number: int, rank: int | None) -> str:
        """The device that the process of a rank calls `number`."""
        return self._of_rank(rank) or f"{self.host}/gpu{number}"

    def cpu(self, rank: int | None) -> str:
        """The processor of the process of a rank: that of the host in whose name the rank's device stands."""
        return f"{self._of_rank(rank).rpartition('/')[0] or self.host}/cpu"

    def _of_rank(self, rank: int | None) -> str:
        return "" if rank is None else self.ranks.get(rank, "")


@dataclass
class TorchRows:
    """Rows `[start, -duration, number, file, kind, thread, name, detail]`, times in nanoseconds.

    `began` is the first of these times; they count from 1970 (UTC) if `has_epoch`. `ranks` are those of the files.
    """

    sorted: SortedRows
    began: int = TIME_MAX
    has_devices: bool = False
    has_epoch: bool = True
    ranks: list[int | None] = field(default_factory=list)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.sorted)


@contextmanager
def torch_rows(files: Sequence[Path]) -> Iterator[TorchRows]:
    """The rows of all files in order of time; raises `MalformedError` naming the file that is no such trace."""
    with SortedRows() as found:
        rows = TorchRows(found)
        for number, path in enumerate(files):
            with chrome_file(path) as opened:
                _add(rows, opened, number)
        yield rows


def _add(rows: TorchRows, file: ChromeFile, number: int) -> None:
    base = file.header.get("baseTimeNanoseconds", 0)
    if type(base) is not int or not 0 <= base < TIME_MAX:
        raise MalformedError(f"{file.name}: baseTimeNanoseconds is no natural number")
    rows.has_epoch &= base > 0
    group = file.header.get("distributedInfo")
    rank = group.get("rank") if isinstance(group, dict) else None
    rows.ranks.append(rank if type(rank) is int else None)
    for entry in file.entries():
        kind = CATEGORIES.get(str(entry.get("cat")))
        if kind is None or entry.get("ph") not in ("X", "i"):
            continue
        start = base + nanoseconds(entry.get("ts"), file.name)
        duration = nanoseconds(entry.get("dur", 0), file.name)
        arguments = entry.get("args")
        detail = _detail(kind, entry, arguments if isinstance(arguments, dict) else {})
        if kind == MEMORY and detail is None:
            continue
        rows.began = min(rows.began, start)
        rows.has_devices |= kind == DEVICE
        thread, name = str(entry.get("tid")), str(entry.get("name"))
        rows.sorted.add([start, -duration, rows.sorted.count, number, kind, thread, name, detail])


def _detail(kind: str, entry: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """What else a row needs: a key, a correlation, a place, or bytes in use."""
    if kind == OPERATOR:
        name, dims = str(entry.get("name")), arguments.get("Input Dims")
        return [key(name, dims), *work(name, dims)]
    if kind == LAUNCH:
        correlation = arguments.get("correlation")
        return correlation if type(correlation) is int else None
    if kind == DEVICE:
        wanted = (
            "device",
            "stream",
            "correlation",
            "bytes",
            "Collective name",
            "Process Group Ranks",
            "Out msg nelems",
        )
        return [entry.get("cat"), *(arguments.get(name) for name in (*wanted, "dtype"))]
    if kind == MEMORY and entry.get("name") == "[memory]":
        return [arguments.get("Device Type"), arguments.get("Device Id"), arguments.get("Total Allocated")]
    return None


def nanoseconds(microseconds: object, name: str) -> int:
    """A time of Chrome's format; raises `MalformedError` unless it is a natural number of nanoseconds below 2**62."""
    try:
        found = Decimal(str(microseconds))
        if found.is_finite() and 0 <= found < TIME_MAX // 1000:
            return int(found * 1000)
    except InvalidOperation:
        pass
    raise MalformedError(f"{name}: {str(microseconds)[:40]!a} is no time in microseconds")
