"""The reference engine: every operator by its definition, in NumPy and float64. Verifiers trust no other engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from tallystick.graphs.engine import Arguments
from tallystick.graphs.graph import Node
from tallystick.operators.arrays import NUMPY
from tallystick.operators.registry import operator
from tallystick.operators.values import Value, Values
from tallystick.tensors.tensor import Tensor


class Reference:
    """The engine without a framework; its arrays are `Value`s that hold every float in float64.

    Results differ from exact ones only by float64 rounding, because a narrower dtype of a graph does not round.
    """

    name: Final = "reference"

    @cached_property
    def algebra(self) -> Values:
        """The algebra in which definitions are read."""
        return Values(NUMPY, "F64")

    def load(self, tensor: Tensor) -> Value:
        """The elements, exactly."""
        return self.algebra.load(tensor)

    def unload(self, array: Value, dtype: str) -> Tensor:
        """A tensor of dtype F64 for every float, else of `dtype`."""
        assert array.dtype == dtype, f"{array.dtype} where the graph says {dtype}"
        return self.algebra.unload(array)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """The definition of the node's operator with its attributes; raises `MalformedError` if it is unknown."""
        known, algebra = operator(node.operator), self.algebra

        def run(arguments: Arguments) -> tuple[Any, ...]:
            return known.read(algebra, {**node.attributes, **arguments})

        return run
