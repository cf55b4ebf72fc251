"""Signatures of nodes: nodes with equal operator, attributes and operand specs share one compiled program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tallystick.errors import MalformedError
from tallystick.frameworks.jax.emission import Signature
from tallystick.graphs.engine import Arguments
from tallystick.graphs.graph import Constant, Graph, Input, Node
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

Key: TypeAlias = "tuple[Any, ...]"


def key_of(signature: Signature) -> Key:
    """A key that is equal for two signatures exactly if the same program computes both."""
    node = signature.node
    layout = tuple((name, _layout(operand)) for name, operand in node.operands.items())
    attributes = tuple((name, repr(attribute)) for name, attribute in node.attributes.items())
    return node.operator, layout, attributes, signature.operands


def signatures_of(graph: Graph) -> list[Signature]:
    """The distinct signatures of a graph, in the order of execution."""
    specs = graph.specs()
    found: dict[Key, Signature] = {}
    for node in graph.nodes:
        signature = Signature(node, tuple(specs[ref] for ref in node.refs))
        found.setdefault(key_of(signature), signature)
    return list(found.values())


def flat(arguments: Arguments, node: Node) -> list[Any]:
    """The arrays of a node's operands in the order of its parameters; absent operands are skipped."""
    found: list[Any] = []
    for name in node.operands:
        operand = arguments[name]
        found.extend(each for each in (operand if isinstance(operand, tuple) else (operand,)) if each is not None)
    return found


def unflat(arrays: Sequence[Any], node: Node) -> dict[str, Any]:
    """The operands by parameter, from their arrays in the order of `flat`."""
    left = iter(arrays)

    def take(operand: Any) -> Any:
        if isinstance(operand, tuple):
            return tuple(None if ref is None else next(left) for ref in operand)
        return None if operand is None else next(left)

    return {name: take(operand) for name, operand in node.operands.items()}


def spread(arrays: Iterable[Any], results: Sequence[TensorSpec | None]) -> tuple[Any, ...]:
    """The results of a node, with `None` for results that it does not have."""
    left = iter(arrays)
    return tuple(None if spec is None else next(left) for spec in results)


def bound(graph: Graph, bindings: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors of the inputs, then of the constants; raises `MalformedError` if one is missing or does not fit."""
    found = []
    sources: list[Input | Constant] = [*graph.inputs, *graph.constants]
    for source in sources:
        tensor = bindings.get(source.name)
        if tensor is None:
            raise MalformedError(f"{source.name} is not bound")
        if TensorSpec.of(tensor) != source.spec:
            raise MalformedError(f"{source.name} is {source.spec}, and bound to {TensorSpec.of(tensor)}")
        found.append(tensor)
    return found


def _layout(operand: Any) -> Any:
    """True for a tensor, False for an absent operand, a tuple of these for a list."""
    return tuple(ref is not None for ref in operand) if isinstance(operand, tuple) else operand is not None
