"""Derives the specs of an operator's results from those of its operands, and what one evaluation costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tallystick.errors import MalformedError
from tallystick.graphs.encoding import Find
from tallystick.graphs.graph import Node, Operand, Ref
from tallystick.operators.registry import operator
from tallystick.operators.types import Types
from tallystick.tensors.spec import TensorSpec

PRIMITIVES_MAX: Final = 20_000
"""The limit of primitives in one operator; a split of a very long axis into single elements would exceed it."""
PRIMITIVES_TOTAL_MAX: Final = 1_000_000
"""The limit of primitives in all different nodes of one graph together."""


@dataclass(frozen=True)
class Derived:
    """The results of one node, and what one evaluation of its definition costs."""

    results: tuple[TensorSpec | None, ...]
    flops: int
    bytes_moved: int
    largest_bytes: int


class Deriver:
    """Derives the nodes of a graph one by one; equal nodes over operands of equal specs are derived once."""

    def __init__(self, find: Find = operator, primitives_max: int = PRIMITIVES_TOTAL_MAX) -> None:
        self._find = find
        self._left = primitives_max
        self._known: dict[tuple[object, ...], Derived] = {}

    def __call__(self, node: Node, specs: Mapping[Ref, TensorSpec]) -> Derived:
        """The result specs and costs of `node`; `specs` holds the specs of the values before it.

        Raises `MalformedError` naming the node if its operands and attributes do not fit together.
        """
        operands = {name: operand_of(operand, specs) for name, operand in node.operands.items()}
        # The key holds the text of the attributes, because 1, 1.0 and True are equal in Python.
        key = (node.operator, *operands.items(), repr(sorted(node.attributes.items())))
        if key not in self._known:
            types = Types()
            metered = _Metered(types, min(self._left, PRIMITIVES_MAX))
            results = read(node, metered, operands | dict(node.attributes), self._find)
            self._left -= metered.calls
            self._known[key] = Derived(results, types.flops, types.bytes_moved, types.largest_bytes)
        return self._known[key]


def read(node: Node, algebra: Any, arguments: Mapping[str, Any], find: Find = operator) -> tuple[Any, ...]:
    """The results of a node in any algebra; raises `MalformedError` naming the node.

    A definition may also raise Python's own exceptions for an attribute that its author did not expect. These become
    `MalformedError` too: the attributes do not fit.
    """
    try:
        return find(node.operator).read(algebra, arguments)
    except MalformedError as error:
        raise MalformedError(f"node {node.number}: {node.operator}: {error}") from None
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {str(error)[:80]}"
        raise MalformedError(f"node {node.number}: {node.operator}: does not fit its attributes ({reason})") from None


def operand_of(operand: Operand, values: Mapping[Ref, Any]) -> Any:
    """An operand with each reference replaced by its entry in `values`."""
    if operand is None or isinstance(operand, str):
        return None if operand is None else values[operand]
    return tuple(None if ref is None else values[ref] for ref in operand)


class _Metered:
    """The algebra of types, with a limit on the number of primitives that a definition calls."""

    def __init__(self, types: Types, calls_max: int) -> None:
        self._types = types
        self._calls_max = calls_max
        self.calls = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self.calls += 1
        if self.calls > self._calls_max:
            raise MalformedError(f"consists of more primitives than the {self._calls_max} allowed")
        primitive: Callable[..., Any] = getattr(self._types, name)
        return primitive
