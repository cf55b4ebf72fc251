"""The error budget of a whole opening: detects errors that are within every operator's tolerance but aligned.

Rounding errors of an honest run have no common direction: over n elements their mean is about 1/√n of their size, and
along L operators they grow like √L. Errors chosen by an attacker can have one direction and grow like L. Two statistics
distinguish them, each with a limit that is calibrated on honest stacks (docs/budget.md):

* *bias*: for each operator the mean signed error in units of its bound, divided by its standard error; this allows for
  chance and for a systematic part of `SYSTEMATIC` of the error's size. Over all operators, the mean of these scores
  (one direction) and their root mean square (any direction) are used.
* *path*: for each result of the graph the relative distance ‖claimed − exact‖ ÷ ‖exact‖ from a run in float64 that
  starts from the same inputs, in units of u√L; L is the number of rounding operators on its longest path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.execution import Reference, execute
from tallystick.programs.graph import Graph, Node, Ref, float_results
from tallystick.programs.operators.definition import Exactness, operator
from tallystick.programs.operators.precision import FORMATS, UNSTATED, Precision
from tallystick.verdicts.operator.judge import DEFINITION_ERRORS, result_bounds
from tallystick.verdicts.profiles import Budget
from tallystick.verdicts.tolerance import Finding, euclidean
from tallystick.verdicts.verdict import Findings, Verdict

Read: TypeAlias = Callable[[Ref], "Tensor | None"]
"""Returns the claimed value of a reference; `None` if it is not opened."""
Floats: TypeAlias = npt.NDArray[np.float64]
SYSTEMATIC: Final = 0.25
"""The share of an operator's error that honest kernels may repeat in every element, as in functions and sums."""
ELEMENTS_MIN: Final = 16
ROUNDS: Final = frozenset({Exactness.ROUNDS, Exactness.ACCUMULATES, Exactness.LIBRARY, Exactness.COMPOSITE})


@dataclass(frozen=True)
class OperatorBias:
    """The signed errors of one result in units of its bound: their number, mean and root mean square."""

    ref: Ref
    elements: int
    mean: float
    size: float

    @property
    def standard_error(self) -> float:
        """The standard error of the mean: by chance, plus the systematic part that honest kernels may have."""
        return math.hypot(self.size / math.sqrt(self.elements), SYSTEMATIC * self.size)

    @property
    def score(self) -> float:
        """The mean in standard errors; about ±1 for an honest operator, at most 1/`SYSTEMATIC` for any."""
        return self.mean / self.standard_error if self.size else 0.0


@dataclass(frozen=True)
class PathError:
    """One result of the graph: its relative distance from the exact one, and its longest path of rounding operators."""

    name: str
    distance: float
    length: int
    unit: float

    @property
    def steps(self) -> float:
        """The distance in units of u√L: nearly constant for honest runs of one graph, whatever L is."""
        return self.distance / (self.unit * math.sqrt(max(self.length, 1)))


@dataclass(frozen=True)
class Accumulated:
    """The measurements that are compared with a budget; `unavailable` lists what could not be measured."""

    biases: tuple[OperatorBias, ...]
    path_errors: tuple[PathError, ...]
    unavailable: tuple[str, ...] = ()

    @property
    def one_direction(self) -> float:
        """|Σ score| ÷ √operators: large if the errors of all operators have one sign."""
        scores = [bias.score for bias in self.biases]
        return abs(math.fsum(scores)) / math.sqrt(len(scores)) if scores else 0.0

    @property
    def any_direction(self) -> float:
        """The root mean square of the scores: large if operators are biased, in whatever direction."""
        return math.sqrt(math.fsum(bias.score**2 for bias in self.biases) / len(self.biases)) if self.biases else 0.0


def budget_of(
    graph: Digest,
    honest: Iterable[Accumulated],
    safety: float = 2.0,
    stacks: Iterable[str] = (),
    machines: Iterable[str] = (),
) -> Budget:
    """The budget of a graph: `safety` times the largest statistics of honest `runs` on `stacks`.

    Raises `MalformedError` if there are no runs, or if the distance of a run is infinite.
    """
    runs = list(honest)
    paths: dict[str, float] = {}
    for error in (error for run in runs for error in run.path_errors):
        paths[error.name] = max(paths.get(error.name, 0.0), safety * error.steps)
    stated: dict[str, Any] = {
        "graph": graph,
        "stacks": [*sorted(stacks)],
        "machines": [*sorted(machines)],
        "runs": len(runs),
        "safety": safety,
        "one_direction": safety * max((run.one_direction for run in runs), default=0.0),
        "any_direction": safety * max((run.any_direction for run in runs), default=0.0),
        "path": max(paths.values(), default=0.0),
        "paths": paths,
    }
    return Budget.from_json(stated, "budget")


def judge_budget(graph: Graph, read: Read, budget: Budget, precision: Precision = UNSTATED) -> Verdict:
    """Whether the errors of a whole opening are within a budget; inconclusive if too little is opened.

    A rejection is statistical: it assumes that honest stacks behave like those that the budget was calibrated on.
    """
    return compare_with_budget(accumulate(graph, read, precision), budget)


def compare_with_budget(measured: Accumulated, budget: Budget) -> Verdict:
    """The verdict on measured errors, each compared with its limit."""
    notes = Findings()
    if measured.biases:
        count = f"{len(measured.biases)} results"
        notes.note(Finding(measured.one_direction, budget.one_direction), "bias in one direction", count)
        notes.note(Finding(measured.any_direction, budget.any_direction), "bias in any direction", count)
    for error in measured.path_errors:
        allowed, detail = budget.paths.get(error.name, budget.path), f"in u√L, L = {error.length}"
        notes.note(Finding(error.steps, allowed), "path", error.name, detail)
    assumed = ("honest stacks differ by no more than those the budget was calibrated on",)
    return Verdict(tuple(notes.seen), measured.unavailable, (), assumed)


def accumulate(graph: Graph, read: Read, precision: Precision = UNSTATED) -> Accumulated:
    """Measure both statistics over the opened values of a graph; computes every operator twice, in float64.

    A value whose dtype or shape is not the one in the graph counts as not opened.
    """
    unavailable: list[str] = []
    specs = graph.specs()

    def fitting(ref: Ref) -> Tensor | None:
        value = read(ref)
        return None if value is None or TensorSpec.of(value) != specs[ref] else value

    biases = tuple(_biases(graph, fitting, precision, unavailable))
    return Accumulated(biases, tuple(_path_errors(graph, fitting, unavailable)), tuple(unavailable))


# ---- bias


def _biases(graph: Graph, read: Read, precision: Precision, unavailable: list[str]) -> Iterator[OperatorBias]:
    for node in graph.nodes:
        if operator(node.operator).exactness not in ROUNDS or not float_results(node):
            continue
        values = {ref: read(ref) for ref in (*node.refs, *filter(None, node.outputs))}
        opened = {ref: value for ref, value in values.items() if value is not None}
        if len(opened) < len(values):
            unavailable.append(f"node {node.number}: a value is not opened")
            continue
        try:
            yield from _biases_of(node, opened, precision)
        except (MalformedError, UnavailableError, *DEFINITION_ERRORS) as error:
            unavailable.append(f"node {node.number}: {error}")


def _biases_of(node: Node, values: Mapping[Ref, Tensor], precision: Precision) -> Iterator[OperatorBias]:
    bounds = result_bounds(node, values, precision)
    for ref, _ in float_results(node):
        limit, claimed = bounds[ref], values[ref]
        shares = signed_shares(claimed, limit.value, limit.radius)
        if len(shares) >= ELEMENTS_MIN and shares.any():
            yield OperatorBias(ref, len(shares), float(shares.mean()), float(np.sqrt(np.mean(shares**2))))


def signed_shares(claimed: Tensor, exact: npt.NDArray[Any], radius: Floats) -> Floats:
    """(claimed − exact) ÷ radius as a vector over the elements with a finite radius above 0, clipped to ±1."""
    numbers = claimed.values().astype(np.float64)
    known = np.isfinite(radius) & (radius > 0) & np.isfinite(numbers) & np.isfinite(exact)
    return np.asarray(np.clip((numbers[known] - exact[known]) / radius[known], -1.0, 1.0), np.float64)


# ---- path


def _path_errors(graph: Graph, read: Read, unavailable: list[str]) -> Iterator[PathError]:
    """The distances of the graph's results; a result that depends on a different discrete choice is not compared."""
    bindings = {source.name: read(source.name) for source in graph.sources}
    known = {name: value for name, value in bindings.items() if value is not None}
    if len(known) < len(bindings):
        unavailable.append("path: an input is not opened")
        return
    observer = _PathObserver(graph, read)
    try:
        execute(graph, known, Reference(), observer)
    except (MalformedError, UnavailableError, *DEFINITION_ERRORS) as error:
        unavailable.append(f"path: {error}")
        return
    for output in graph.outputs:
        if output.value in observer.distances:
            distance = observer.distances[output.value]
            yield PathError(output.name, distance, observer.lengths[output.value], observer.units[output.value])
    unavailable.extend(f"path: {line}" for line in observer.lost)


class _PathObserver:
    """Compares each claimed value with the exact one during the run."""

    def __init__(self, graph: Graph, read: Read) -> None:
        self.read = read
        self.distances: dict[Ref, float] = {}
        self.lengths: dict[Ref, int] = {source.name: 0 for source in graph.sources}
        self.units: dict[Ref, float] = {source.name: 0.0 for source in graph.sources}
        self.apart: set[Ref] = set()
        self.lost: list[str] = []

    def __call__(self, node: Node, _: Mapping[str, Any], results: tuple[Any, ...]) -> None:
        rounds = operator(node.operator).exactness in ROUNDS
        length = max((self.lengths[ref] for ref in node.refs), default=0) + rounds
        for ref, spec, value in zip(node.outputs, node.results, results, strict=True):
            if ref is None or spec is None:
                continue
            unit = FORMATS[spec.dtype].unit if spec.is_float and rounds else 0.0
            self.lengths[ref] = length
            self.units[ref] = max([unit, *(self.units[operand] for operand in node.refs)])
            if self.apart.intersection(node.refs):
                self.apart.add(ref)
            else:
                self._compare(ref, spec.is_float, np.asarray(value.array))

    def _compare(self, ref: Ref, is_float: bool, exact: npt.NDArray[Any]) -> None:
        claimed = self.read(ref)
        if claimed is None:
            self.lost.append(f"{ref} is not opened")
        elif not is_float and not np.array_equal(claimed.array(), exact):
            self.apart.add(ref)
            self.lost.append(f"{ref} came out otherwise, and what is behind it is not compared")
        elif is_float and self.units[ref]:
            self.distances[ref] = relative_distance(claimed.values().astype(np.float64), exact)


def relative_distance(claimed: Floats, exact: Floats) -> float:
    """‖claimed − exact‖₂ ÷ ‖exact‖₂ over the elements where both are finite; infinite where only one is."""
    finite = np.isfinite(claimed) & np.isfinite(exact)
    if (np.isfinite(claimed) != np.isfinite(exact)).any():
        return math.inf
    size, apart = euclidean(exact[finite]), euclidean(claimed[finite] - exact[finite])
    return 0.0 if apart == 0.0 else apart / size if size else math.inf
