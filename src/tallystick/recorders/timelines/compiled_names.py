"""Which nodes of a graph each instruction of a compiled XLA program computes, by its text.

`jax.jit(f).lower(…).compile().as_text()` gives this text. An instruction is found by its operation and the dtype and
shape of its result, where program and graph have exactly one of that kind; a fusion computes what is in it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tallystick.errors import MalformedError
from tallystick.graphs.graph import Graph

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
