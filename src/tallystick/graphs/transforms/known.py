"""The part of a decode step that reads neither tokens nor weights: masks, ranges and numbers, computed in advance.

A step was captured with a certain number of keys. A value that depends on this number may be a mask, a place in the
text, or the number itself. A value is `counted` if this number, or this number minus one, entered it other than as a
side. If the place is an input of the step, values that depend on it are computed for every place of the text.
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
from tallystick.operators.definition import Attribute
from tallystick.operators.registry import operator
from tallystick.operators.values import Value
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

ELEMENTS_MAX: Final = 1 << 24
"""The limit of elements that are computed in advance."""
SIDES: Final = frozenset(
    {"size", "shape", "sizes", "split_size", "split_sizes", "slice_sizes", "normalized_shape", "limit_indices"}
)
AXES: Final = frozenset(
    {"dim", "dims", "dim0", "dim1", "axis", "axis0", "axis1", "start_dim", "end_dim", "source", "destination"}
    | {"permutation", "broadcast_dimensions", "dimension", "dimensions", "iota_dimension", "index_vector_dim"}
)
"""Attributes that name axes or sides: they are checked by reading the definition at other sizes."""


@dataclass(frozen=True, eq=False)
class Known:
    """A value that the program alone determines, and whether it depends on the number of keys.

    If it depends on the place, `places` holds it for every place of the text, and `value` is the first of these.
    """

    value: Value
    counted: bool = False
    sized: bool = False
    places: tuple[Value, ...] = ()

    @property
    def spec(self) -> TensorSpec:
        """The dtype and shape."""
        return TensorSpec(self.value.dtype, self.value.shape)

    @property
    def number(self) -> float | None:
        """The number that all elements equal at every place; `None` if there is none."""
        return None if self.places else _number(self.value)

    @property
    def is_plain(self) -> bool:
        """Whether it depends neither on the number of keys nor on the place, and can be used as it is."""
        return not self.counted and not self.places

    @property
    def is_place(self) -> bool:
        """Whether it equals the place."""
        return bool(self.places) and all(_number(value) == place for place, value in enumerate(self.places))

    def causal(self, axis: int) -> tuple[float, float] | None:
        """The numbers at keys along `axis` up to the place and at later keys; `None` if it is not such a mask."""
        seen, later = set[float | None](), set[float | None]()
        for place, value in enumerate(self.places):
            array = np.moveaxis(np.asarray(value.array), axis, 0)
            seen.add(_number_of(array[: place + 1]))
            later |= {_number_of(array[place + 1 :])} if place + 1 < len(array) else set()
        first, second = (each.pop() if len(each) == 1 else None for each in (seen, later))
        return None if first is None or second is None else (first, second)

    @property
    def is_mask(self) -> bool:
        """Whether it can be a mask with the same number at all keys."""
        number = self.number
        return self.value.dtype == "BOOL" or (number is not None and (number == 0 or forbids(number)))


@dataclass
class KnownValues:
    """Everything that a graph computes from numbers alone, found node by node.

    `suspects` are the numbers of places in the cache and of keys, if they differ from step to step; `length` is the
    length of the text.
    """

    suspects: frozenset[int]
    length: int
    values: dict[Ref, Known] = field(default_factory=dict)
    elements_left: int = ELEMENTS_MAX

    def hold(self, constants: Mapping[Ref, Tensor]) -> None:
        """Add constants of the program; one that contains the number of keys may have been computed from it."""
        for ref, tensor in constants.items():
            value = REFERENCE.load(tensor)
            counted = bool(np.isin(np.asarray(value.array), sorted(self.suspects)).any())
            self.values[ref] = Known(value, counted)

    def follow(self, node: Node) -> bool:
        """Compute the node if it reads only known values; returns whether it does."""
        elements = sum(spec.size for spec in node.results if spec is not None)
        if not all(ref in self.values for ref in node.refs) or elements > self.elements_left // self.length:
            return False
        count = max((len(self.values[ref].places) for ref in node.refs), default=0)
        self.elements_left -= elements * max(count, 1)
        try:
            results = [self._computed(node, place) for place in range(count or 1)]
        except (MalformedError, UnavailableError):
            return False
        self._keep(node, results if count else [], results[0], [self.values[ref] for ref in node.refs])
        return True

    def _computed(self, node: Node, place: int) -> tuple[Any, ...]:
        held = {ref: self.values[ref] for ref in node.refs}
        values = {ref: each.places[place] if each.places else each.value for ref, each in held.items()}
        arguments = {name: operand_of(each, values) for name, each in node.operands.items()}
        return read(node, REFERENCE, arguments | dict(node.attributes))

    def ambiguous(self, attributes: Iterable[Attribute]) -> Number | None:
        """The first number that may be the number of keys, or of places in the cache; `None` if there is none."""
        for attribute in attributes:
            for entry in attribute if isinstance(attribute, tuple) else (attribute,):
                if isinstance(entry, int | float) and not isinstance(entry, bool) and entry in self.suspects:
                    return entry
        return None

    def _keep(
        self, node: Node, places: list[tuple[Any, ...]], results: tuple[Any, ...], read_here: list[Known]
    ) -> None:
        numbers = [each for name, each in node.attributes.items() if name not in SIDES | AXES]
        sides = [each for name, each in node.attributes.items() if name in SIDES]
        counted = any(each.counted for each in read_here) or self.ambiguous(numbers) is not None
        sized = any(each.sized for each in read_here) or self.ambiguous(sides) is not None
        elements = max([each.spec.size for each in read_here], default=0)
        for i, (ref, value) in enumerate(zip(node.outputs, results, strict=True)):
            if ref is None:
                continue
            number, size = _number(value), int(np.asarray(value.array).size)
            made = sized and (size < elements or number is None)
            is_counted = counted or made or number in self.suspects
            self.values[ref] = Known(value, is_counted, sized, tuple(each[i] for each in places))


def place_of(length: int, spec: TensorSpec) -> Known:
    """The input that holds the place of the token, with its value for every token of a text."""
    values = tuple(REFERENCE.full(spec.shape, place, spec.dtype) for place in range(length))
    return Known(values[0], places=values)


def _number(value: Value) -> float | None:
    return _number_of(np.asarray(value.array))


def _number_of(array: Any) -> float | None:
    flat = array.reshape(-1)
    return float(flat[0]) if flat.size and bool(np.all(flat == flat[0])) else None


def numbers_of(graph: Graph) -> Iterable[int]:
    """Every side and every whole number in a graph."""
    for spec in graph.specs().values():
        yield from spec.shape
    for node in graph.nodes:
        for attribute in node.attributes.values():
            entries = attribute if isinstance(attribute, tuple) else (attribute,)
            yield from (entry for entry in entries if type(entry) is int)


def is_checked(name: str) -> bool:
    """Whether an attribute of this name holds only axes and sides."""
    return name in SIDES | AXES or name.endswith(("_dimensions", "_dims"))


def parameters_of(node: Node) -> Mapping[str, str]:
    """The kind of every attribute of a node."""
    return {each.name: each.kind for each in operator(node.operator).parameters if not each.is_operand}
