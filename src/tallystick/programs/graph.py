"""A graph is a pure tensor program as data: operators, and the values that pass between them, within limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar, cast

from tallystick.core.canonical_json import DEPTH_MAX, nesting
from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.operators.definition import Attribute

#     (state', outputs) = graph(state, inputs)
#
# A value is named by a reference: the name of an input or of a constant, `n12` for the first result of node 12, `n12.1`
# for its second. Node numbers are given at capture, in an order of execution, and a slice keeps them.

T = TypeVar("T")
Ref: TypeAlias = str
Operand: TypeAlias = "Ref | tuple[Ref | None, ...] | None"


class GraphForm(StrEnum):
    """What a graph is for; `distributed` is reserved in the format and not used yet."""

    LOGICAL = "logical"
    VERIFICATION = "verification"
    DISTRIBUTED = "distributed"


class Role(StrEnum):
    """The role of an input: part of the state, new in each step, or cut out of a larger graph."""

    WEIGHT = "weight"
    BUFFER = "buffer"
    OPTIMIZER = "optimizer"
    SCHEDULE = "schedule"
    RNG = "rng"
    INPUT = "input"
    CUT = "cut"


@dataclass(frozen=True)
class Input:
    """A value that the caller provides."""

    name: Ref
    role: Role
    spec: TensorSpec


@dataclass(frozen=True)
class Constant:
    """A value that is part of the program, identified by its tensor digest."""

    name: Ref
    spec: TensorSpec
    digest: Digest


@dataclass(frozen=True)
class Node:
    """One application of an operator; every parameter of the operator is in `operands` or in `attributes`."""

    number: int
    operator: str
    operands: Mapping[str, Operand]
    attributes: Mapping[str, Attribute]
    results: tuple[TensorSpec | None, ...]

    @cached_property
    def refs(self) -> tuple[Ref, ...]:
        """The values read, in the order of the parameters; a value read twice is listed twice."""
        return tuple(ref for operand in self.operands.values() for ref in refs_of(operand))

    @cached_property
    def outputs(self) -> tuple[Ref | None, ...]:
        """References to the results; `None` for a result that an attribute excludes."""
        return tuple(None if spec is None else result_ref(self.number, i) for i, spec in enumerate(self.results))


@dataclass(frozen=True)
class Output:
    """A named result of the whole graph; new state has the name of the input that it replaces."""

    name: str
    value: Ref


@dataclass(frozen=True)
class Graph:
    """A checked tensor program; `nodes` are in an order of execution."""

    dialect: str
    form: GraphForm
    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]

    @property
    def sources(self) -> tuple[Input | Constant, ...]:
        """The values that no node gives: inputs, then constants."""
        return (*self.inputs, *self.constants)

    def specs(self) -> dict[Ref, TensorSpec]:
        """The spec of every value."""
        specs = {value.name: value.spec for value in self.sources}
        for node in self.nodes:
            pairs = zip(node.outputs, node.results, strict=True)
            specs |= {ref: spec for ref, spec in pairs if ref is not None and spec is not None}
        return specs


def kept(holder: Node | Graph, name: str, find: Callable[[], T]) -> T:
    """What `find` derives from a node or a graph, found once and kept with it, as a `cached_property` is."""
    attributes = holder.__dict__
    if name not in attributes:
        attributes[name] = find()
    return cast(T, attributes[name])


def result_ref(number: int, index: int) -> Ref:
    """The reference to result `index` of node `number`."""
    return f"n{number}.{index}" if index else f"n{number}"


def refs_of(operand: Operand) -> tuple[Ref, ...]:
    """The references inside an operand."""
    if operand is None:
        return ()
    return (operand,) if isinstance(operand, str) else tuple(ref for ref in operand if ref is not None)


# Limits on the graphs that a verifier reads and runs.
#
# Each limit is checked as early as possible: the size of a document before it is parsed, the number of its nodes before
# they are read, and the costs of an execution before anything runs.

PARSED_BYTES: Final[Mapping[bytes, int]] = {b"{": 240, b"[": 72, b",": 48, b":": 96, b'"': 32}
"""By kind of byte, the most memory that each such byte of a document takes once parsed (CPython 3.11 … 3.14)."""
NODE_MARK: Final = b'"operator":'


@dataclass(frozen=True)
class GraphLimits:
    """Upper limits; a graph beyond any of them is refused.

    `document_bytes` limits the text, `parsed_bytes` the memory of its parsed form, and `depth` the longest chain of
    nodes in which each reads the one before. `memory_bytes` limits the values in memory at one time plus the largest
    intermediate of the running operator, each in its own dtype. `flops` limits the operations that `Types` counts.
    """

    document_bytes: int = 16 << 20
    parsed_bytes: int = 112 << 20
    nodes: int = 20_000
    depth: int = 20_000
    memory_bytes: int = 64 << 30
    flops: int = 10**16

    def check_document(self, data: bytes) -> None:
        """Raise `MalformedError` for a text that is too long, or too large once parsed. Does not parse it."""
        if len(data) > self.document_bytes:
            raise MalformedError(f"graph: {len(data)} bytes, more than the {self.document_bytes} allowed")
        if data.count(NODE_MARK) > self.nodes:
            raise MalformedError(f"graph: {data.count(NODE_MARK)} nodes, more than the {self.nodes} allowed")
        parsed = sum(data.count(mark) * weight for mark, weight in PARSED_BYTES.items())
        if parsed > self.parsed_bytes:
            raise MalformedError(f"graph: takes up to {parsed} bytes once parsed, more than {self.parsed_bytes}")
        if nesting(data) > DEPTH_MAX:
            raise MalformedError(f"graph: nested deeper than {DEPTH_MAX}")


def operands_of(node: Node, values: Mapping[Ref, Any]) -> dict[str, Any]:
    """The operands of a node by parameter name: a value, a tuple of values and `None`s, or `None`."""
    return {name: operand_of(operand, values) for name, operand in node.operands.items()}


def operand_of(operand: Operand, values: Mapping[Ref, Any]) -> Any:
    """The value, or tuple of values, that an operand refers to."""
    if operand is None or isinstance(operand, str):
        return None if operand is None else values[operand]
    return tuple(None if ref is None else values[ref] for ref in operand)


def results_of(node: Node) -> tuple[tuple[Ref, TensorSpec], ...]:
    """The results that a node has, with their specs."""
    pairs = zip(node.outputs, node.results, strict=True)
    return tuple((ref, spec) for ref, spec in pairs if ref is not None and spec is not None)


def float_results(node: Node) -> tuple[tuple[Ref, TensorSpec], ...]:
    """The float results, with their specs: only these can differ by rounding."""
    return tuple((ref, spec) for ref, spec in results_of(node) if spec.is_float)
