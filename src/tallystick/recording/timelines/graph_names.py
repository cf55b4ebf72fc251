"""Finds the nodes of a graph by what a profiler says of a call: name, shapes, work and order."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.graph import Graph, Node
from tallystick.programs.inspection import Inspection, before_update, update_nodes
from tallystick.programs.slicing import givers_of

# The work of a call by its name and shapes, and whether it fits into what the nodes around it need.
#
# A span is named by the prover. A product of matrices in it belongs to its nodes only as far as these multiply as much.

WORK_MAX: Final = 1 << 62
PRODUCTS: Final = 1.25
"""How many times the products of its definition a node may take: frameworks pad."""
ELEMENTS: Final = 16
"""How many times the elements of its operands and results: frameworks take one operator apart into several passes."""
ELEMENTS_ALWAYS: Final = 1 << 12
LINEAR: Final = "linear"
PRODUCT: Final = "product"
PLAIN: Final = frozenset({"aten", "prims", "autograd", "torch", "mkl", "mkldnn", "onednn", "c10d", "profiler"})
"""The namespaces of PyTorch's own operators; of another one nothing is known."""
_MARKED: Final = re.compile(r"^(_foreach_|_fused_|_)|(_backward\w*|_forward\w*|_)$")
_MATRICES: Final = frozenset({"matmul", "mv", "dot", "vdot", "inner", "mkl_linear", "linear", "linear_pointwise"})
_FAMILIES: Final = (
    ("convolution", re.compile(r"conv(?!er)")),
    ("attention", re.compile(r"attention")),
    ("recurrent", re.compile(r"lstm|(^|_)(gru|rnn)(_|$)")),
    (
        "decomposition",
        re.compile(r"linalg_(?!vector_norm|norm|cross|multi_dot|matmul|vecdot)|cholesky|pinverse|matrix_exp"),
    ),
    ("decomposition", re.compile(r"(^|_)(lu|svd|qr|eig\w*|inverse|solve|geqrf|orgqr|ormqr|det|slogdet)(_|$)")),
    ("transform", re.compile(r"fft|stft")),
    ("distances", re.compile(r"cdist|pdist|bilinear$|trilinear$")),
)


class CallWork(NamedTuple):
    """What a call costs: of what kind it is, and its multiplications and additions, or its elements."""

    kind: str
    amount: int


@dataclass
class Room:
    """What nodes, or a call, still leave to the calls inside."""

    products: int = 0
    elements: int = 0
    families: frozenset[str] = frozenset()

    def admits(self, work: CallWork) -> bool:
        """Whether a call of this work fits; its work is taken away then."""
        if work.kind == PRODUCT:
            is_inside = work.amount <= self.products
            self.products -= work.amount if is_inside else 0
        elif work.kind == LINEAR:
            is_inside = work.amount <= self.elements
            self.elements -= work.amount if is_inside else 0
        else:
            is_inside = work.kind in self.families
        return is_inside


def room_of(node: Node, specs: Sequence[TensorSpec], flops: int) -> Room:
    """The room of a node whose operands and results are `specs`."""
    elements = sum(spec.size for spec in specs)
    space, _, rest = node.operator.partition(".")
    kind = _kind_of(f"{space}::{rest.rpartition('.')[0] or rest}")
    products = int(PRODUCTS * flops) if flops > elements else 0
    return Room(products, ELEMENTS * elements + ELEMENTS_ALWAYS, frozenset({kind} - {LINEAR, PRODUCT}))


def work_of(name: str, shapes: Sequence[Sequence[int]]) -> CallWork:
    """The work of a call by what a profiler says of it."""
    kind, counted = _kind_of(name), [[size for size in shape if type(size) is int and size >= 0] for shape in shapes]
    elements = sum(map(prod, counted))
    if kind == PRODUCT and (amount := _products(_base(name), counted)) > 2 * elements:
        return CallWork(kind, min(WORK_MAX, amount))
    if kind in (PRODUCT, LINEAR):  # a matrix and a vector: each element is read once
        return CallWork(LINEAR, min(WORK_MAX, max(elements, _broadcast(counted) if kind == LINEAR else 0)))
    return CallWork(kind, 0)


def _base(name: str) -> str:
    base = name.rpartition("::")[2]
    while (shorter := _MARKED.sub("", base)) != base:
        base = shorter
    return base


def _kind_of(name: str) -> str:
    """Linear in its elements, a product of matrices, or a family of operators whose cost the shapes do not tell."""
    space, is_named, _ = name.rpartition("::")
    if is_named and space.split("::")[0] not in PLAIN and not space.endswith("evaluate_function"):
        return name
    base = _base(name) if is_named else name
    if not is_named:
        return LINEAR if not re.match(r"triton_(?!poi|per|red)", base) else name
    if base in _MATRICES or base.endswith("mm"):
        return PRODUCT
    return next((family for family, pattern in _FAMILIES if pattern.search(base)), LINEAR)


def _products(base: str, shapes: list[list[int]]) -> int:
    """The multiplications and additions of a product of matrices: `[…, m, k]` times `[…, k, n]`."""
    matrices = [shape for shape in shapes if shape]
    if base.startswith(("add", "badd")) and len(matrices) > 2:
        matrices = matrices[1:]
    if len(matrices) < 2:
        return sum(map(prod, shapes))
    first, second = matrices[:2]
    if "linear" in base:
        return 2 * prod(first) * (second[0] if len(second) > 1 else 1)
    columns = second[-1] if len(second) > 1 else 1
    rows = first[-2] if len(first) > 1 else 1
    return 2 * max(prod(first) * columns, prod(second) * rows)


def _broadcast(shapes: list[list[int]]) -> int:
    """The elements of the result where a call broadcasts its operands, 0 where they do not fit."""
    if not shapes or len(shapes) > 4:
        return 0
    rank = max(map(len, shapes))
    sizes = list(zip(*([1] * (rank - len(shape)) + shape for shape in shapes), strict=True))
    fits = all(len({*each} - {1}) <= 1 for each in sizes)
    return prod(max(each) for each in sizes) if fits else 0


# Finds nodes of a graph by what a profiler says of an operator: its name and the shapes of its operands.

KEY_CHARACTERS_MAX: Final = 1 << 14
Key: TypeAlias = str
"""The name of an operator and the shapes of its operands that have any, as text."""


@dataclass(frozen=True)
class GraphNames:
    """The nodes of a step: those by key that compute the loss and its gradients, and those of the optimizer."""

    body: dict[Key, tuple[int, ...]]
    update: tuple[int, ...]
    reads: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The nodes that each node reads, in an order of execution."""
    rooms: dict[int, Room] = field(default_factory=dict)
    """The room of every node."""

    def room_of_all(self, nodes: Iterable[int]) -> Room | None:
        """The room of these nodes together; `None` where one of them is not known, and nothing can be said."""
        found = [self.rooms.get(number) for number in nodes]
        known = [room for room in found if room is not None]
        if len(known) < len(found) or not known:
            return None
        families = frozenset[str]().union(*(room.families for room in known))
        return Room(sum(room.products for room in known), sum(room.elements for room in known), families)

    @classmethod
    def of(cls, graph: Graph) -> GraphNames:
        """The names in a graph. Without outputs `gradients.…`, as in a graph of inference, all nodes are its body."""
        before = before_update(graph)
        body: defaultdict[Key, list[int]] = defaultdict(list)
        specs, givers = graph.specs(), givers_of(graph)
        for node in graph.nodes:
            if node.number in before:
                body[_key_of(node, [list(specs[ref].shape) for ref in node.refs])].append(node.number)
        return cls(
            {key: tuple(numbers) for key, numbers in body.items()},
            update_nodes(graph),
            {node.number: tuple(givers[ref] for ref in node.refs if ref in givers) for node in graph.nodes},
            _rooms(graph),
        )


def work(name: str, dims: Any) -> CallWork:
    """The work of a call that a profiler reports with these shapes."""
    return work_of(name, list(_shapes(dims if isinstance(dims, list) else [])))


def key(name: str, dims: Any) -> Key:
    """The key of an operator that a profiler names, such as `aten::mul_`; in place or not is one operator."""
    shapes = list(_shapes(dims if isinstance(dims, list) else []))
    base = name.removesuffix("_") if not name.endswith("__") else name
    return f"{base} {shapes}"[:KEY_CHARACTERS_MAX]


def _key_of(node: Node, shapes: list[list[int]]) -> Key:
    space, _, rest = node.operator.partition(".")
    return key(f"{space}::{rest.rpartition('.')[0] or rest}", shapes)


def _shapes(dims: list[Any]) -> Iterable[Any]:
    """The shapes with at least one dimension; those of lists of tensors one by one."""
    for each in dims:
        if isinstance(each, list) and each:
            yield from (inner for inner in each if inner) if isinstance(each[0], list) else [each]


def _rooms(graph: Graph) -> dict[int, Room]:
    inspection = Inspection(graph)
    specs, costs = inspection.specs, inspection.costs
    used = {node.number: {*node.refs, *(ref for ref in node.outputs if ref)} for node in graph.nodes}
    return {n.number: room_of(n, [specs[ref] for ref in used[n.number]], costs[n.number].flops) for n in graph.nodes}


# Which node of the graph each call of a step is: those of one name and shapes in order, unless that cannot be.

Nodes: TypeAlias = tuple[int, ...]
Seen: TypeAlias = "dict[Key, list[tuple[int, int]]]"
"""When the calls of each key began and ended, in nanoseconds."""
OPEN_MAX: Final = 4
"""The steps that may be under way at one time."""
RESOLUTION: Final = 1000
"""The nanoseconds by which two times may be wrong."""


@dataclass
class Matching:
    """Matches the calls of every step in two passes: `counting` gathers them, then each call is told its node.

    A key is nobody's in a step in which it has more or fewer calls than nodes, or in which its nodes in order would run
    before what they read: a training accumulates gradients earlier than its graph does.

    The first pass also notes in `closures`, for the span of an optimizer that runs a closure, when the last backward
    pass in it ends, and in `is_marked` whether any step is marked.
    """

    names: GraphNames
    counting: bool = True
    open: dict[int | None, Seen] = field(default_factory=dict)
    over: set[int | None] = field(default_factory=set)
    bad: set[tuple[int | None, Key]] = field(default_factory=set)
    turns: Counter[tuple[int | None, Key]] = field(default_factory=Counter)
    closures: dict[int, int] = field(default_factory=dict)
    is_marked: bool = False

    def take(self, step: int | None, key: Key, start: int, end: int) -> Nodes | None:
        """The node of a call, `()` if it cannot be told, `None` if the graph has no such operator."""
        nodes = self.names.body.get(key)
        if nodes is None:
            return None
        if self.counting:
            self._note(step, key, start, end)
            return ()
        turn = self.turns[step, key]
        self.turns[step, key] += 1
        return () if (step, key) in self.bad else (nodes[turn],)

    def finish_counting(self) -> None:
        """Settle the steps that are left; calls are told their nodes from now on."""
        for step in [*self.open]:
            self._settle(step)
        self.counting = False

    def _note(self, step: int | None, key: Key, start: int, end: int) -> None:
        if step in self.over:  # it goes on after later ones have begun
            self.bad.add((step, key))
            return
        self.open.setdefault(step, {}).setdefault(key, []).append((start, end))
        if len(self.open) > OPEN_MAX:
            self._settle(next(iter(self.open)))

    def _settle(self, step: int | None) -> None:
        seen = self.open.pop(step)
        self.over.add(step)
        body = self.names.body
        for times in seen.values():
            times.sort()  # those of a closure come behind others of their step
        good = {key for key, times in seen.items() if len(times) == len(body[key])}
        while wrong := self._out_of_order(seen, good):
            good -= wrong
        self.bad |= {(step, key) for key in seen.keys() - good}

    def _out_of_order(self, seen: Seen, good: set[Key]) -> set[Key]:
        """The keys of nodes that would run before what they read, and of what they read."""
        times, keys = dict[int, tuple[int, int]](), dict[int, Key]()
        for key in good:
            times |= zip(self.names.body[key], seen[key], strict=True)
            keys |= dict.fromkeys(self.names.body[key], key)
        ended: dict[int, tuple[int, int]] = {}
        wrong: set[Key] = set()
        for number, reads in self.names.reads.items():
            ended[number] = max((ended[read] for read in reads), default=(0, -1))
            if number in times:
                end, before = ended[number]
                if end > times[number][0] + RESOLUTION:
                    wrong |= {keys[number], keys[before]}
                ended[number] = (times[number][1], number)
        return wrong


# Which nodes of a graph each instruction of a compiled XLA program computes, by its text.
#
# `jax.jit(f).lower(…).compile().as_text()` gives this text. An instruction is found by its operation and the dtype and
# shape of its result, where program and graph have exactly one of that kind; a fusion computes what is in it.

MODULE: Final = re.compile(r"^HloModule ([\w.\-]+)", re.ASCII)
COMPUTATION: Final = re.compile(r"^(?:ENTRY )?%([\w.\-]+) \(", re.ASCII)
INSTRUCTION: Final = re.compile(r"^  (?:ROOT )?%([\w.\-]+) = (\w+)\[([\d,]*)\]\S* ([\w\-]+)\(", re.ASCII)
CALLED: Final = re.compile(r"[ ,]calls=%([\w.\-]+)", re.ASCII)
DTYPES: Final = {
    **{f"f{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"s{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    "bf16": "BF16",
    "pred": "BOOL",
}
OPERATIONS: Final = {
    "dot": "dot_general",
    "broadcast": "broadcast_in_dim",
    "slice": "slice",
    "reduce": "reduce",
    "reduce-window": "reduce_window",
    "dynamic-slice": "dynamic_slice",
    "exponential": "exponential",
}
"""What StableHLO calls an operation of XLA that it does not call the same with `_` for `-`."""
Kind = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class CompiledNames:
    """The name of a compiled module, and the nodes of its instructions by name."""

    module: str
    nodes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, text: str, graph: Graph, what: str) -> CompiledNames:
        """The names in the text of a compiled program; raises `MalformedError` naming `what` if it is none."""
        match = MODULE.match(text)
        if match is None:
            raise MalformedError(f"{what}: no text of a compiled program: it does not begin with HloModule")
        kinds, calls = _read(text)
        known = _single(graph, kinds)
        own = {name: known[kind] for name, kind in kinds.items() if kind in known}
        nodes = {name: tuple(sorted(_inside(name, own, calls))) for name in kinds}
        return cls(match[1], {name: found for name, found in nodes.items() if found})


def _read(text: str) -> tuple[dict[str, Kind], dict[str, list[str]]]:
    """The kind of every instruction, and what is in each fusion and computation."""
    kinds: dict[str, Kind] = {}
    calls: defaultdict[str, list[str]] = defaultdict(list)
    computation = ""
    for line in text.splitlines():
        if match := COMPUTATION.match(line):
            computation = match[1]
        elif match := INSTRUCTION.match(line):
            name, dtype, shape, operation = match.groups()
            dims = tuple(int(size) for size in shape.split(",") if size)
            called = OPERATIONS.get(operation, operation.replace("-", "_"))
            kinds[name] = (f"stablehlo.{called}", DTYPES.get(dtype, dtype), dims)
            calls[f"%{computation}"].append(name)
            calls[name] += [f"%{each}" for each in CALLED.findall(line)]
    return kinds, calls


def _single(graph: Graph, kinds: dict[str, Kind]) -> dict[Kind, int]:
    """The node of each kind of which graph and program have one."""
    compiled, nodes = Counter(kinds.values()), defaultdict[Kind, list[int]](list)
    for node in graph.nodes:
        spec = node.results[0]
        if spec is not None:
            nodes[node.operator, spec.dtype, spec.shape].append(node.number)
    return {kind: numbers[0] for kind, numbers in nodes.items() if len(numbers) == compiled[kind] == 1}


def _inside(name: str, own: dict[str, int], calls: dict[str, list[str]]) -> Iterator[int]:
    """The nodes of an instruction and of all that its fusion computes; XLA's computations do not call themselves."""
    waiting, seen = [name], set[str]()
    while waiting:
        each = waiting.pop()
        if each not in seen:
            seen.add(each)
            waiting += calls.get(each, [])
            if each in own:
                yield own[each]
