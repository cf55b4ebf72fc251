"""The differences between two graphs, and between their results on the same inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.canonical_json import Json
from tallystick.core.tensors import State, Tensor, TensorSpec, numpy_dtype, round_to_bfloat16
from tallystick.programs.encoding import canonical, header_json, node_json
from tallystick.programs.execution import Arguments, Engine, execute
from tallystick.programs.graph import Graph, Node, Ref, Role

# The differences between two graphs: nodes added, removed and changed, whatever their numbers are.
#
# The structure of a node is its operator, attributes, results and the structure of everything it reads. Nodes with
# equal structure are the same. The others are aligned in order. Such a node counts as unchanged if it has the same
# operator, attributes and results as its counterpart and reads the counterparts of the same values: the change is
# upstream of it.

COMPARISONS_MAX: Final = 4_000_000
"""With more pairs of equal keys than this, the middle part is aligned by position, to bound the time."""
Pairs: TypeAlias = dict[int, int]


@dataclass(frozen=True)
class Change:
    """A node of the first graph, its counterpart in the second, and the fields in which they differ, with both values.

    Values are those of the node records: an attribute, a reference to what is read, or the specs of the results.
    """

    number: int
    other: int
    values: Mapping[str, tuple[Json, Json]]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that differ."""
        return tuple(self.values)

    def to_json(self) -> Json:
        """As JSON values."""
        values: dict[str, Json] = {name: list(both) for name, both in self.values.items()}
        return {"fields": list(self.fields), "node": self.number, "other": self.other, "values": values}


@dataclass(frozen=True)
class Diff:
    """The differences: node numbers removed from the first graph, node numbers added in the second, and changes.

    `header` names the differences outside the nodes, such as `input x` or `dialect`.
    """

    removed: tuple[int, ...]
    added: tuple[int, ...]
    changed: tuple[Change, ...]
    header: tuple[str, ...]
    same: int

    @property
    def is_empty(self) -> bool:
        """Whether the two graphs are equal but for node numbers."""
        return not (self.removed or self.added or self.changed or self.header)

    def to_json(self) -> Json:
        """As JSON values."""
        return {
            "added": list(self.added),
            "changed": [change.to_json() for change in self.changed],
            "header": list(self.header),
            "removed": list(self.removed),
            "same": self.same,
        }


def diff(first: Graph, second: Graph) -> Diff:
    """The differences from `first` to `second`."""
    pairs = _equal_structure(first, second)
    pairs |= _aligned(_rest(first, pairs.keys()), _rest(second, pairs.values()))
    theirs = {node.number: node for node in second.nodes}
    values = _counterparts(first, theirs, pairs)
    changes = tuple(_changes(first, theirs, pairs, values))
    return Diff(
        removed=tuple(node.number for node in _rest(first, pairs.keys())),
        added=tuple(node.number for node in _rest(second, pairs.values())),
        changed=changes,
        header=tuple(_header_changes(first, second, values)),
        same=len(pairs) - len(changes),
    )


def _equal_structure(first: Graph, second: Graph) -> Pairs:
    waiting: dict[bytes, list[int]] = {}
    for number, structure in _structures(second).items():
        waiting.setdefault(structure, []).append(number)
    for numbers in waiting.values():
        numbers.reverse()
    mine = _structures(first).items()
    return {number: waiting[structure].pop() for number, structure in mine if waiting.get(structure)}


def _structures(graph: Graph) -> dict[int, bytes]:
    of_value: dict[Ref, str] = {}
    structures: dict[int, bytes] = {}
    for node in graph.nodes:
        read = [of_value.get(ref, ref) for ref in node.refs]
        structures[node.number] = sha256(canonical([_signature(node), *read]).encode()).digest()
        for i, ref in enumerate(node.outputs):
            if ref is not None:
                of_value[ref] = f"{structures[node.number].hex()} {i}"
    return structures


def _signature(node: Node) -> str:
    """Everything in a node except its number and the values it reads; of these, only which are present."""
    record = node_json(node)
    present: Json = {
        name: [item is not None for item in operand] if isinstance(operand, tuple) else operand is not None
        for name, operand in node.operands.items()
    }
    return canonical([record["operator"], record["attributes"], record["results"], present])


def _rest(graph: Graph, paired: Iterable[int]) -> list[Node]:
    known = set(paired)
    return [node for node in graph.nodes if node.number not in known]


def _aligned(first: list[Node], second: list[Node]) -> Pairs:
    """Equal signatures in order; between them, equal operators in order."""
    pairs: Pairs = {}
    for is_equal, mine, theirs in _blocks(first, second, _signature):
        if is_equal:
            pairs |= _paired(mine, theirs)
        else:
            inner = _blocks(mine, theirs, lambda node: node.operator)
            pairs |= {k: v for same, a, b in inner if same for k, v in _paired(a, b).items()}
    return pairs


def _blocks(
    first: list[Node], second: list[Node], key: Callable[[Node], str]
) -> Iterator[tuple[bool, list[Node], list[Node]]]:
    """Both lists cut into runs with equal keys and runs with different keys."""
    ours, others = [*map(key, first)], [*map(key, second)]
    head = _common(ours, others)
    tail = _common(ours[head:][::-1], others[head:][::-1])
    end, other_end = len(ours) - tail, len(others) - tail
    yield True, first[:head], second[:head]
    yield from _inner_blocks(first[head:end], second[head:other_end], ours[head:end], others[head:other_end])
    yield True, first[end:], second[other_end:]


def _inner_blocks(
    first: list[Node], second: list[Node], ours: list[str], others: list[str]
) -> Iterator[tuple[bool, list[Node], list[Node]]]:
    counts = Counter(others)
    if sum(counts[each] for each in ours) > COMPARISONS_MAX:
        both = list(zip(first, second, ours, others, strict=False))
        yield from ((mine == theirs, [a], [b]) for a, b, mine, theirs in both)
        return
    for tag, a, b, c, d in SequenceMatcher(None, ours, others, autojunk=False).get_opcodes():
        yield tag == "equal", first[a:b], second[c:d]


def _common(first: list[str], second: list[str]) -> int:
    """The length of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (mine, theirs) in pairs if mine != theirs), min(len(first), len(second)))


def _paired(first: list[Node], second: list[Node]) -> Pairs:
    return {mine.number: theirs.number for mine, theirs in zip(first, second, strict=True)}


def _counterparts(first: Graph, theirs: Mapping[int, Node], pairs: Pairs) -> dict[Ref, Ref]:
    """For each value that a node gives, its reference in the other graph; empty if it has no counterpart."""
    counterparts: dict[Ref, Ref] = dict.fromkeys(
        (ref for node in first.nodes for ref in node.outputs if ref is not None), ""
    )
    for node in first.nodes:
        if node.number in pairs:
            both = zip(node.outputs, theirs[pairs[node.number]].outputs, strict=False)
            counterparts |= {mine: other for mine, other in both if mine is not None and other is not None}
    return counterparts


def _changes(first: Graph, theirs: Mapping[int, Node], pairs: Pairs, values: Mapping[Ref, Ref]) -> Iterator[Change]:
    for node in first.nodes:
        if node.number in pairs:
            other = theirs[pairs[node.number]]
            fields = _differing(node, other, values)
            if fields:
                before, after = node_json(node), node_json(other)
                both = {name: (_field(before, kind, name), _field(after, kind, name)) for kind, name in fields}
                yield Change(node.number, other.number, both)


def _differing(node: Node, other: Node, values: Mapping[Ref, Ref]) -> list[tuple[str, str]]:
    """The fields that differ, each with the kind of field it is."""
    fields = [
        ("attributes", name)
        for name, mine in node.attributes.items()
        if repr(mine) != repr(other.attributes.get(name))  # tells 1 from True, and 0.0 from -0.0
    ]
    for name, operand in node.operands.items():
        if _translated(operand, values) != other.operands.get(name):
            fields.append(("operands", name))
    return [*fields, ("results", "results")] if node.results != other.results else fields


def _field(record: Mapping[str, Json], kind: str, name: str) -> Json:
    value = record[kind]
    return value.get(name) if isinstance(value, dict) else value


def _translated(operand: object, values: Mapping[Ref, Ref]) -> object:
    if isinstance(operand, tuple):
        return tuple(_translated(item, values) for item in operand)
    return values.get(operand, operand) if isinstance(operand, str) else None


def _header_changes(first: Graph, second: Graph, values: Mapping[Ref, Ref]) -> Iterator[str]:
    mine, theirs = header_json(first), header_json(second)
    yield from (name for name in ("dialect", "form") if mine[name] != theirs[name])
    for kind in ("inputs", "constants"):
        ours, others = ({each.name: each for each in getattr(graph, kind)} for graph in (first, second))
        yield from (f"{kind[:-1]} {name}" for name in sorted({*ours, *others}) if ours.get(name) != others.get(name))
    mine_out = {each.name: values.get(each.value, each.value) for each in first.outputs}
    their_out = {each.name: each.value for each in second.outputs}
    names = sorted({*mine_out, *their_out})
    yield from (f"output {name}" for name in names if mine_out.get(name) != their_out.get(name))


# Runs two graphs on the same inputs: how far their outputs differ, and the first operator whose results differ.
#
# The reference engine computes in float64 whatever the dtypes of a graph. There, two programs that only order or fuse
# their operators differently agree to far below one rounding of F32; two programs with different formulas do not.

SAME_FUNCTION: Final = 2.0**-20
"""How far graphs of one function may differ on the reference, as a share of the largest element: 16 F32 roundings."""
SHOWN: Final = 3


@dataclass(frozen=True)
class Comparison:
    """How far the outputs differ, as shares of the largest element of each, and where the programs begin to differ.

    `parting` is the first operator of the first graph whose value differs from its counterpart's by more than the
    limit. `extra` are the operators of the first graph up to there that have no counterpart, `lacking` those of the
    second.
    """

    distances: Mapping[str, float]
    limit: float
    parting: str = ""
    extra: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()

    @property
    def worst(self) -> str:
        """The name of the output that differs most."""
        return max(self.distances, key=lambda name: self.distances[name])

    @property
    def agrees(self) -> bool:
        """Whether every output is within the limit."""
        return all(distance <= self.limit for distance in self.distances.values())

    @property
    def explanation(self) -> str:
        """What differs, in one line; empty if the outputs agree."""
        if self.agrees:
            return ""
        parts = [f"{self.worst} is {self.distances[self.worst]:.2g} of its largest element away"]
        parts += [f"they part at {self.parting}"] if self.parting else []
        parts += [f"only here, before that: {', '.join(self.extra[-SHOWN:])}"] if self.extra else []
        parts += [f"only there: {', '.join(self.lacking[-SHOWN:])}"] if self.lacking else []
        return "; ".join(parts)


def compare_graphs(
    first: Graph, second: Graph, bindings: tuple[State, State], engine: Engine, limit: float = SAME_FUNCTION
) -> Comparison:
    """Run both graphs, each with its own bindings, and compare the outputs that the second one has.

    The distance of an output that the first graph lacks is infinite. Raises what `execute` raises.
    """
    delta = diff(first, second)
    mine = _run(first, bindings[0], engine, {change.number for change in delta.changed})
    theirs = _run(second, bindings[1], engine, {change.other for change in delta.changed})
    names = [output.name for output in second.outputs]
    distances = {name: share_apart(theirs[name], mine[name]) if name in mine else np.inf for name in names}
    ordered = sorted(delta.changed, key=lambda change: change.number)
    parting = next((change for change in ordered if _is_apart(change, mine, theirs, limit)), None)
    if parting is None:
        return Comparison(distances, limit, "", _before(first, delta.removed, None), _before(second, delta.added, None))
    node = next(node for node in first.nodes if node.number == parting.number)
    removed, added = _before(first, delta.removed, parting.number), _before(second, delta.added, parting.other)
    return Comparison(distances, limit, _named(node, parting.fields), removed, added)


def share_apart(expected: Tensor, computed: Tensor) -> float:
    """The largest |Δ| as a share of the largest finite magnitude; infinite if shapes, NaNs or infinities differ."""
    x, y = (tensor.values().astype(np.float64) for tensor in (expected, computed))
    if x.shape != y.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        away = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    largest = float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))
    return float(np.max(np.nan_to_num(away, nan=np.inf, posinf=np.inf), initial=0.0)) / (largest or 1.0)


def draw_state(graph: Graph, generator: np.random.Generator, role: Role = Role.WEIGHT) -> dict[Ref, Tensor]:
    """Random weights, or the inputs of another role, for which values stay near 1 and different formulas show.

    Matrices are normally distributed with variance 1 ÷ their last side; vectors lie near 1.
    """
    return {each.name: _normal(each.spec, generator) for each in graph.inputs if each.role is role}


def cast(tensor: Tensor, dtype: str) -> Tensor:
    """The numbers of a tensor, rounded to another dtype."""
    return tensor if tensor.dtype == dtype else from_numbers(tensor.values(), dtype)


def from_numbers(values: npt.NDArray[Any], dtype: str) -> Tensor:
    """Numbers as a tensor of `dtype`, rounded to nearest even."""
    if dtype == "BF16":
        return Tensor.of(round_to_bfloat16(values.astype("<f4")), dtype)
    return Tensor.of(np.asarray(values, numpy_dtype(dtype)), dtype)


def _normal(spec: TensorSpec, generator: np.random.Generator) -> Tensor:
    drawn = generator.standard_normal(spec.shape)
    return from_numbers(drawn / np.sqrt(spec.shape[-1]) if len(spec.shape) > 1 else 1 + drawn / 4, spec.dtype)


def _run(graph: Graph, bindings: State, engine: Engine, kept: set[int]) -> dict[Ref, Tensor]:
    """The outputs by name, and by reference the results of the nodes `kept`."""
    values: dict[Ref, Tensor] = {}

    def keep(node: Node, _: Arguments, results: tuple[Any, ...]) -> None:
        if node.number in kept:
            kept_values = zip(node.outputs, results, node.results, strict=True)
            values.update({ref: engine.unload(array, spec.dtype) for ref, array, spec in kept_values if ref and spec})

    outputs = execute(graph, bindings, engine, watch=keep)
    return values | outputs


def _is_apart(change: Change, mine: State, theirs: State, limit: float) -> bool:
    value, other = mine.get(f"n{change.number}"), theirs.get(f"n{change.other}")
    return value is not None and other is not None and share_apart(other, value) > limit


def _before(graph: Graph, numbers: Collection[int], last: int | None) -> tuple[str, ...]:
    """The nodes with these numbers up to the last one, or all."""
    wanted = {number for number in numbers if last is None or number <= last}
    return tuple(_named(node) for node in graph.nodes if node.number in wanted)


def _named(node: Node, parameters: tuple[str, ...] = ()) -> str:
    return f"n{node.number} ({node.operator}{': ' if parameters else ''}{', '.join(parameters)})"
