"""What a partition's number of children costs on real graphs: data at the board, and operators that a challenger runs.

Every operator in turn is taken to be the wrong one, and the bisection of its graph is followed to it. Counted are the
bytes of all files that the prover puts at the board for it: the descent (opening, operators, graph, and the values at
both ends of the step), the values that cross the cuts of each partition, and the values of the operator. The
challenger runs the children of each partition up to the wrong one, each from the prover's own values; counted are the
operators in them, by the number of operators of the graph. Where its kernels give the bits of the prover's, it names
the last child without running it; with other kernels it runs that one too. In brackets stand the least and the most
over all operators; these are counts, and the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import torch

from benchmarks.dispute_rounds import spread
from benchmarks.dispute_script import WAYS
from benchmarks.dispute_workload import ANSWER, TRAININGS, opened, subject
from benchmarks.figure import Figure, Goal
from benchmarks.measure import Interval
from tallystick.disputes.evidence.traces import KeptOperators
from tallystick.disputes.evidence.view import Cuts
from tallystick.disputes.game.protocols import Files
from tallystick.disputes.game.state import bounds, cut_places
from tallystick.verdicts.opening.files import VALUES

GOAL = Goal(1.05)
WORKLOADS = {**{f"a step of {name}": each for name, each in TRAININGS.items()}, "a call of 8 layers": ANSWER}


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    chosen = list(WORKLOADS)[-1:] if quick else list(WORKLOADS)
    for name in chosen:
        with TemporaryDirectory() as folder:
            kept = opened(subject(WORKLOADS[name], Path(folder) / "run"), Path(folder) / "opened")
            reveals: dict[int, Mapping[str, int]] = {}
            for ways in (4, 16) if quick else WAYS:
                yield from _figures(name, Bisections(kept, ways, reveals), 16 if quick else 1)


def _figures(name: str, bisections: Bisections, stride: int) -> Iterator[Figure]:
    size, ways = bisections.kept.size, bisections.ways
    bisections.check()
    places = range(0, size, stride)
    paths = [list(bisections.path(place)) for place in places]
    told = f"{name}, V = {size:,}, N = {ways}"
    shared = {"size": size, "ways": ways, "partitions": spread([float(len(path)) for path in paths])}
    files = [bisections.files(path, place) for path, place in zip(paths, places, strict=True)]
    details = shared | {
        "descent mb": sum(bisections.descent.values()) / 1e6,
        "first partition mb": sum(bisections.crossing(0, size).values()) / 1e6,
        "all values mb": bisections.everything / 1e6,
    }
    megabytes = spread([sum(each.values()) / 1e6 for each in files])
    yield Figure(
        f"dispute_board: {size}/{ways}",
        f"data at the board, {told}",
        megabytes,
        len(paths),
        "count",
        unit="MB",
        details=details,
    )
    for name, kernels, runs_last in (("work", "equal", False), ("drift", "other", True)):
        walks = zip(paths, places, strict=True)
        runs = [bisections.executed(path, place, runs_last) / size for path, place in walks]
        yield Figure(
            f"dispute_board: {name} {size}/{ways}",
            f"most operators that the challenger runs ÷ operators of one pass, {kernels} kernels, {told}",
            Interval(max(runs), max(runs), max(runs)),
            len(paths),
            "count",
            goal=GOAL,
            details=shared | {"mean": mean(runs), "least": min(runs)},
        )


@dataclass
class Bisections:
    """All bisections of one opening, by the operator that they end at; `reveals` are the same for any `ways`."""

    kept: KeptOperators
    ways: int
    reveals: dict[int, Mapping[str, int]]

    def __post_init__(self) -> None:
        self._crossing: dict[tuple[int, int], Mapping[str, int]] = {}
        self._operators: dict[tuple[int, int], int] = {}

    def path(self, place: int) -> Iterator[tuple[int, int]]:
        """The ranges that are partitioned on the way to a place."""
        low, high = 0, self.kept.size
        while high - low > 1:
            yield low, high
            low, high = next((a, b) for a, b in pairwise(bounds(low, high, self.ways)) if a <= place < b)

    def files(self, path: list[tuple[int, int]], place: int) -> dict[str, int]:
        """The bytes of everything at the board at the end, by names."""
        found = dict(self.descent) | self._revealed(place)
        for low, high in path:
            found |= self.crossing(low, high)
        return found

    def executed(self, path: Iterable[tuple[int, int]], place: int, runs_last: bool) -> int:
        """How many operators the challenger runs: of each partition the children up to the wrong one.

        The last child is not run to be named where all others give the very bits that the prover claims.
        """
        parts = (list(pairwise(bounds(low, high, self.ways))) for low, high in path)
        children = (child for part in parts for child in (part if runs_last else part[:-1]))
        return sum(self.operators(low, high) for low, high in children if low <= place)

    @cached_property
    def cuts(self) -> Cuts:
        """Where values cross."""
        return Cuts(self.kept.whole.graph)

    @cached_property
    def descent(self) -> Mapping[str, int]:
        """What the descent puts at the board."""
        return self._measured("descent", self.kept.descent(self.kept.cut(0)).files)

    @cached_property
    def everything(self) -> int:
        """The bytes of all values of the step."""
        return (self.kept.whole.folder / VALUES).stat().st_size

    def crossing(self, low: int, high: int) -> Mapping[str, int]:
        """What a partition of a range puts at the board."""
        if (low, high) not in self._crossing:
            places = cut_places(low, high, self.ways)
            self._crossing[low, high] = self._measured(f"{low} to {high}", self.kept.partition(low, places).files)
        return self._crossing[low, high]

    def check(self) -> None:
        """Make sure that the challenger runs what is counted."""
        size = self.kept.size
        for low, high in pairwise(bounds(0, size, self.ways)):
            child = self.cuts.child(low, high)
            assert self.operators(low, high) == (len(child.nodes) if child else 0)

    def operators(self, low: int, high: int) -> int:
        """How many operators of a child somebody needs."""
        if (low, high) not in self._operators:
            self._operators[low, high] = self._needed(low, high)
        return self._operators[low, high]

    def _revealed(self, place: int) -> Mapping[str, int]:
        if place not in self.reveals:
            self.reveals[place] = self._measured(f"{place}", self.kept.reveal(place).files)
        return self.reveals[place]

    def _needed(self, low: int, high: int) -> int:
        """As many operators as `Cuts.child` leaves, counted from the end of the child."""
        wanted, count = set(self.cuts.crossing(low, high - 1)), 0
        for node in reversed(self.kept.whole.graph.nodes[low:high]):
            if not wanted.isdisjoint(ref for ref in node.outputs if ref is not None):
                wanted.update(node.refs)
                count += 1
        return count

    def _measured(self, answer: str, files: Files) -> dict[str, int]:
        """The bytes of the files of an answer."""
        return {f"{answer}: {name}": _size(source) for name, source in files.items()}


def _size(source: bytes | Path) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size
