"""The first operator that differs between two openings of one step, and how far apart tensors are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.canonical_json import Json
from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.formats.openings import Opening
from tallystick.programs.difference import diff as diff_graphs
from tallystick.programs.files import NamedNodes, load_graph, load_modules
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.step_names import STATE_PREFIXES
from tallystick.verdicts.opening.files import (
    GRAPH,
    OPERATORS,
    OpenedValues,
    follow_operators,
    read_opening,
    read_operator_lines,
)
from tallystick.verdicts.operator.judge import OperatorJudge
from tallystick.verdicts.verdict import number

# How far apart two tensors or two states are: elements, absolute distance, and units in the last place.

Floats: TypeAlias = npt.NDArray[np.float64]
FLOATS: Final = {"F64": (53, -1074), "F32": (24, -149), "F16": (11, -24), "BF16": (8, -133)}
"""The binary digits of a float, and the exponent of its smallest value."""


@dataclass(frozen=True)
class TensorDifference:
    """Two tensors that differ in their bits.

    `distance` is the largest absolute difference, `ulps` the largest in units in the last place of the larger value;
    `None` for integers. `index` is the flat place of the element that is furthest off,
    `first` and `second` its values. Where the specs differ, `problem` says so and nothing is measured.
    """

    name: str
    elements: int = 0
    size: int = 0
    distance: float = 0.0
    ulps: float | None = None
    index: int = 0
    first: float = 0.0
    second: float = 0.0
    problem: str = ""

    def to_json(self) -> Json:
        """As JSON values."""
        if self.problem:
            return {"name": self.name, "problem": self.problem}
        return {
            "distance": number(self.distance),
            "elements": self.elements,
            "first": number(self.first),
            "index": self.index,
            "name": self.name,
            "second": number(self.second),
            "size": self.size,
            "ulps": None if self.ulps is None else number(self.ulps),
        }

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        far = "" if self.ulps is None else f", {self.ulps:,.4g} ulp{'' if self.ulps == 1 else 's'}"
        return f"{self.name}: {self.elements:,} of {self.size:,} elements, by at most {self.distance:.3g}{far}"


def compare_states(first: State, second: State) -> tuple[TensorDifference, ...]:
    """The tensors of two states that differ: weights first, then the others, each in the order of their names."""
    names = sorted(first.keys() | second.keys(), key=lambda name: (not name.startswith("weights."), name))
    differences = (compare_tensors(name, first.get(name), second.get(name)) for name in names)
    return tuple(difference for difference in differences if difference is not None)


def compare_tensors(name: str, first: Tensor | None, second: Tensor | None) -> TensorDifference | None:
    """How two tensors differ; `None` if their bits are equal."""
    if first is None or second is None:
        return TensorDifference(
            name, problem=f"{'not there' if first is None else 'there'} / {'not there' if second is None else 'there'}"
        )
    specs = TensorSpec.of(first), TensorSpec.of(second)
    if specs[0] != specs[1]:
        return TensorDifference(name, problem=f"{specs[0]} / {specs[1]}")
    if bytes(first.data) == bytes(second.data):
        return None
    return _measured(name, first, second)


def _measured(name: str, first: Tensor, second: Tensor) -> TensorDifference:
    bits = _bits(first) != _bits(second)  # tells the zeros apart, and finds equal NaNs equal
    mine, theirs = (tensor.values().reshape(-1).astype(np.float64) for tensor in (first, second))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(mine - theirs)
    gap[np.isnan(gap)] = np.inf  # one of the two is no number, or both are infinite with other signs
    ulps = _ulps(first.dtype, mine, theirs, gap)
    furthest = int(np.argmax(np.where(bits, gap, -1.0)))
    return TensorDifference(
        name,
        elements=int(bits.sum()),
        size=bits.size,
        distance=float(np.max(gap, where=bits, initial=0.0)),
        ulps=None if ulps is None else float(np.max(ulps, where=bits, initial=0.0)),
        index=furthest,
        first=float(mine[furthest]),
        second=float(theirs[furthest]),
    )


def _bits(tensor: Tensor) -> npt.NDArray[Any]:
    array = np.ascontiguousarray(tensor.array()).reshape(-1)
    return array.view(f"u{array.itemsize}") if array.dtype.kind != "b" else array


def _ulps(dtype: str, mine: Floats, theirs: Floats, gap: Floats) -> Floats | None:
    """The distances in units in the last place of the larger value; `None` for what is no float."""
    if dtype not in FLOATS:
        return None
    digits, least = FLOATS[dtype]
    _, exponents = np.frexp(np.maximum(np.abs(mine), np.abs(theirs)))
    ulps: Floats = np.ldexp(gap, -np.maximum(exponents - digits, least))
    return ulps


# The first operator that differs between two openings of one step: equal inputs, and other outputs.
#
# Values are compared by their digests, so that only those of the operator that is named are read.

GRAPH_LINES: Final = 8
LATE: Final = (
    "the states before the step differ already: open an earlier step, best the one after an anchor that is equal"
)


@dataclass(frozen=True)
class OperatorDifference:
    """The first operator that differs in two openings of one step; `place` counts the graph's operators from 0.

    `departs` says that it reads equal values and gives others: the difference begins in it. Otherwise it is the first
    that reads a source that differs. `results` measures what it gives, `shares` how far each
    side is from the exact result, as a share of the operator's proven bound; `others` counts the operators after it
    that give other values too.
    """

    record: int
    node: int
    place: int
    count: int
    operator: str
    module: str | None
    departs: bool
    results: tuple[TensorDifference, ...]
    shares: tuple[float, float] | None
    others: int

    @property
    def title(self) -> str:
        """Its place in the graph, its name, and its module if that is known."""
        where = f" in {self.module}" if self.module else ""
        return f"operator {self.place} of {self.count}, {self.operator}{where}"

    def to_json(self) -> Json:
        """As JSON values."""
        return {
            "count": self.count,
            "departs": self.departs,
            "module": self.module,
            "node": self.node,
            "operator": self.operator,
            "others": self.others,
            "place": self.place,
            "record": self.record,
            "results": [value.to_json() for value in self.results],
            "shares_of_bound": None if self.shares is None else [number(value) for value in self.shares],
        }


@dataclass(frozen=True)
class OpeningsDifference:
    """How two openings of one step differ: their graphs, the sources that they read, and the first operator."""

    graphs: tuple[str, ...]
    sources: tuple[str, ...]
    operator: OperatorDifference | None
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether graph, sources and all results are equal."""
        return not (self.graphs or self.sources or self.operator)

    def to_json(self) -> Json:
        """As JSON values."""
        return {
            "graphs": list(self.graphs),
            "notes": list(self.notes),
            "operator": None if self.operator is None else self.operator.to_json(),
            "sources": list(self.sources),
        }


@dataclass(frozen=True)
class _Read:
    """An opening with its graph and the digests of all values."""

    folder: Path
    opening: Opening
    graph: Graph
    named: NamedNodes
    digests: Mapping[Ref, Digest] = field(default_factory=dict)


def diff_openings(first: Path, second: Path) -> OpeningsDifference:
    """How the opened operators in two folders differ.

    Raises:
        MalformedError: a file is invalid.
        ProofError: the records of an opening do not connect its inputs to its results.
        UnavailableError: a file is missing.
        UsageError: the openings are of different records, or hold one operator each.
    """
    mine, theirs = _read(first), _read(second)
    if mine.opening.index != theirs.opening.index:
        raise UsageError(f"{first} opens record {mine.opening.index}, and {second} record {theirs.opening.index}")
    sources = tuple(_differing(mine.opening.sources, theirs.opening.sources))
    operator = _first_operator(mine, theirs) if mine.opening.graph == theirs.opening.graph else None
    is_late = operator is not None and not operator.departs and any(name.startswith(STATE_PREFIXES) for name in sources)
    notes = tuple(filter(None, (mine.named.problem, theirs.named.problem, LATE if is_late else "")))
    if mine.opening.graph != theirs.opening.graph:
        return OpeningsDifference(tuple(_graph_lines(mine, theirs)), sources, None, notes)
    return OpeningsDifference((), sources, operator, notes)


def _read(folder: Path) -> _Read:
    opening = read_opening(folder)
    if not (folder / OPERATORS).is_file():
        raise UsageError(f"{folder}: opens one operator alone; open the whole step, without --node")
    graph = load_graph(folder / GRAPH)
    digests = follow_operators(opening, graph, read_operator_lines(folder))
    return _Read(folder, opening, graph, load_modules(folder / GRAPH, graph), digests)


def _differing(mine: Mapping[str, Digest], theirs: Mapping[str, Digest]) -> list[str]:
    return [name for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name)]


def _first_operator(mine: _Read, theirs: _Read) -> OperatorDifference | None:
    """The first operator that departs; where none does, the first that reads a source that differs."""
    differing = [(place, node) for place, node in enumerate(mine.graph.nodes) if _gives_others(node, mine, theirs)]
    departing = next((pair for pair in differing if _reads_equal(pair[1], mine, theirs)), None)
    first = departing or next(iter(differing), None)
    if first is None:
        return None
    place, node = first
    results, shares = _measured_outputs(node, mine, theirs, departing is not None)
    return OperatorDifference(
        mine.opening.index,
        node.number,
        place,
        len(mine.graph.nodes),
        node.operator,
        mine.named.paths.get(node.number) or theirs.named.paths.get(node.number),
        departing is not None,
        results,
        shares,
        len(differing) - 1,
    )


def _gives_others(node: Node, mine: _Read, theirs: _Read) -> bool:
    return any(mine.digests[ref] != theirs.digests[ref] for ref in node.outputs if ref is not None)


def _reads_equal(node: Node, mine: _Read, theirs: _Read) -> bool:
    return all(mine.digests[ref] == theirs.digests[ref] for ref in node.refs)


def _measured_outputs(
    node: Node, mine: _Read, theirs: _Read, departs: bool
) -> tuple[tuple[TensorDifference, ...], tuple[float, float] | None]:
    """How far the results lie apart, and how far each side is from the exact result; nothing without the values."""
    refs = [*node.refs, *(ref for ref in node.outputs if ref is not None)]
    values = [OpenedValues(side.folder).opened({ref: side.digests[ref] for ref in refs}) for side in (mine, theirs)]
    if not all(ref in opened for opened in values for ref in refs):
        return (), None
    compared = (compare_tensors(ref, values[0][ref], values[1][ref]) for ref in node.outputs if ref is not None)
    results = tuple(result for result in compared if result is not None)
    if not departs:
        return results, None
    judge = OperatorJudge(mine.opening.graph)
    try:
        far = [max((part.finding.distance for part in judge.compare(node, opened)), default=0.0) for opened in values]
    except (MalformedError, UnavailableError):
        return results, None
    return results, (far[0], far[1])


def _graph_lines(mine: _Read, theirs: _Read) -> Iterator[str]:
    changes = diff_graphs(mine.graph, theirs.graph)
    operators = [{node.number: node.operator for node in side.graph.nodes} for side in (mine, theirs)]
    lines = [*changes.header]
    lines += [f"n{node} {operators[0][node]}{mine.named.place(node)}: only in the first" for node in changes.removed]
    lines += [f"n{node} {operators[1][node]}{theirs.named.place(node)}: only in the second" for node in changes.added]
    lines += [
        f"n{node.number} {operators[0][node.number]}{mine.named.place(node.number)}: "
        + ", ".join(f"{name} {a} / {b}" for name, (a, b) in node.values.items())
        for node in changes.changed
    ]
    yield from lines[:GRAPH_LINES] or ["the graphs differ in the numbers of their nodes alone"]
    if len(lines) > GRAPH_LINES:
        files = (quote(str(side.folder / GRAPH)) for side in (mine, theirs))
        yield f"and {len(lines) - GRAPH_LINES} more: `tally graph diff {' '.join(files)}`"
