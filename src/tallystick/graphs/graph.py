"""A graph is a pure tensor program as data: operators, and the values that pass between them.

    (state', outputs) = graph(state, inputs)

A value is named by a reference: the name of an input or of a constant, `n12` for the first result of node 12, `n12.1`
for its second. Node numbers are given at capture, in an order of execution, and a slice keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias, TypeVar, cast

from tallystick.commitments.digests import Digest
from tallystick.operators.definition import Attribute
from tallystick.tensors.spec import TensorSpec

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
        found = {value.name: value.spec for value in self.sources}
        for node in self.nodes:
            pairs = zip(node.outputs, node.results, strict=True)
            found |= {ref: spec for ref, spec in pairs if ref is not None and spec is not None}
        return found


def kept(holder: Node | Graph, name: str, find: Callable[[], T]) -> T:
    """What `find` derives from a node or a graph, found once and kept with it, as a `cached_property` is."""
    found = holder.__dict__
    if name not in found:
        found[name] = find()
    return cast(T, found[name])


def result_ref(number: int, index: int) -> Ref:
    """The reference to result `index` of node `number`."""
    return f"n{number}.{index}" if index else f"n{number}"


def refs_of(operand: Operand) -> tuple[Ref, ...]:
    """The references inside an operand."""
    if operand is None:
        return ()
    return (operand,) if isinstance(operand, str) else tuple(ref for ref in operand if ref is not None)
