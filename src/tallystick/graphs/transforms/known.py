"""The part of a decode step that reads neither tokens nor weights: masks, ranges and numbers, computed as they stand.

A step was captured with so many keys, and what depends on their number may be a mask, a place in the text, or the
number itself. A value is `counted` if that number, or the one before it, had a part in it other than as a side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tallystick.errors import MalformedError, UnavailableError
from tallystick.graphs.derive import operand_of, read
from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.graphs.transforms.later import REFERENCE, forbids
from tallystick.operators.algebra import Number
from tallystick.operators.operator import Attribute
from tallystick.operators.registry import operator
from tallystick.operators.values import Value
from tallystick.tensors import Tensor, TensorSpec

ELEMENTS_MAX: Final = 1 << 22
"""Larger values are not computed ahead."""
SIDES: Final = frozenset(
    {"size", "shape", "sizes", "split_size", "split_sizes", "slice_sizes", "normalized_shape", "limit_indices"}
)
AXES: Final = frozenset(
    {"dim", "dims", "dim0", "dim1", "axis", "axis0", "axis1", "start_dim", "end_dim", "source", "destination"}
    | {"permutation", "broadcast_dimensions", "dimension", "dimensions", "iota_dimension", "index_vector_dim"}
)
"""Attributes that name axes, or sides: what they say is checked by reading the definition at other sizes."""


@dataclass(frozen=True, eq=False)
class Known:
    """A value that the program alone determines, and whether the number of keys had a part in it."""

    value: Value
    counted: bool = False
    sized: bool = False

    @property
    def spec(self) -> TensorSpec:
        """The dtype and shape."""
        return TensorSpec(self.value.dtype, self.value.shape)

    @property
    def number(self) -> float | None:
        """The number that every element is, if there is one."""
        flat = np.asarray(self.value.array).reshape(-1)
        return float(flat[0]) if flat.size and bool(np.all(flat == flat[0])) else None

    @property
    def is_plain(self) -> bool:
        """Whether it can be taken as it is: the number of keys had no part in it."""
        return not self.counted

    @property
    def is_mask(self) -> bool:
        """Whether it can be a mask that treats all keys alike."""
        number = self.number
        return self.value.dtype == "BOOL" or (number is not None and (number == 0 or forbids(number)))


@dataclass
class Program:
    """Everything that a graph computes from numbers alone, found node by node; `keys` are seen in the captured step."""

    keys: int
    values: dict[Ref, Known] = field(default_factory=dict)

    def hold(self, constants: Mapping[Ref, Tensor]) -> None:
        """Know constants of the program; one that holds the number of keys may have been made of it."""
        for ref, tensor in constants.items():
            value = REFERENCE.load(tensor)
            counted = bool(np.isin(np.asarray(value.array), sorted(self.suspects)).any())
            self.values[ref] = Known(value, counted)

    def follow(self, node: Node) -> bool:
        """Compute the node if it reads nothing but known values."""
        sizes = [spec.size for spec in node.results if spec is not None]
        if not all(ref in self.values for ref in node.refs) or sum(sizes) > ELEMENTS_MAX:
            return False
        read_here = [self.values[ref] for ref in node.refs]
        arguments = {name: operand_of(each, self._arrays(node)) for name, each in node.operands.items()}
        try:
            results = read(node, REFERENCE, arguments | dict(node.attributes))
        except (MalformedError, UnavailableError):
            return False
        self._keep(node, results, read_here)
        return True

    def ambiguous(self, attributes: Iterable[Attribute]) -> Number | None:
        """A number that may stand for the number of keys, or of places in the cache."""
        for attribute in attributes:
            for entry in attribute if isinstance(attribute, tuple) else (attribute,):
                if isinstance(entry, int | float) and not isinstance(entry, bool) and entry in self.suspects:
                    return entry
        return None

    @property
    def suspects(self) -> frozenset[int]:
        """The numbers of places in the cache and of keys."""
        return frozenset({self.keys - 1, self.keys})

    def _arrays(self, node: Node) -> Mapping[Ref, Any]:
        return {ref: self.values[ref].value for ref in node.refs}

    def _keep(self, node: Node, results: tuple[Any, ...], read_here: list[Known]) -> None:
        numbers = [each for name, each in node.attributes.items() if name not in SIDES | AXES]
        sides = [each for name, each in node.attributes.items() if name in SIDES]
        counted = any(each.counted for each in read_here) or self.ambiguous(numbers) is not None
        sized = any(each.sized for each in read_here) or self.ambiguous(sides) is not None
        elements = max([each.spec.size for each in read_here], default=0)
        for ref, value in zip(node.outputs, results, strict=True):
            if ref is None:
                continue
            found = Known(value, counted, sized)
            shrunk = sized and (found.spec.size < elements or found.number is None)
            self.values[ref] = Known(value, counted or shrunk, sized)


def numbers_of(graph: Graph) -> Iterable[int]:
    """Every side and every whole number that a graph names."""
    for spec in graph.specs().values():
        yield from spec.shape
    for node in graph.nodes:
        for attribute in node.attributes.values():
            entries = attribute if isinstance(attribute, tuple) else (attribute,)
            yield from (entry for entry in entries if type(entry) is int)


def is_checked(name: str) -> bool:
    """Whether an attribute of this name says nothing but axes and sides."""
    return name in SIDES | AXES or name.endswith("_dimensions") or name.endswith("_dims")


def parameters_of(node: Node) -> Mapping[str, str]:
    """The kind of every attribute of a node."""
    return {each.name: each.kind for each in operator(node.operator).parameters if not each.is_operand}
