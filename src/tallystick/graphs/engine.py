"""The interface of an engine: it converts tensors to its own arrays, and nodes to functions of these arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tallystick.graphs.graph import Node
from tallystick.tensors.tensor import Tensor

Arguments: TypeAlias = Mapping[str, Any]
"""The operands of a node by parameter name: an array, a tuple of arrays and `None`s, or `None`."""


@runtime_checkable
class PlacesArrays(Protocol):
    """An engine that says where its arrays lie: two arrays of as many bytes at one place are views of the same ones."""

    def place(self, array: Any) -> int | None:
        """The address of an array whose canonical bytes lie in memory as they are; `None` if they do not."""
        ...


class Engine(Protocol):
    """Computes operators; raises `UnavailableError` for an operator that it does not implement."""

    @property
    def name(self) -> str:
        """The name of the engine: `reference`, `torch`, `jax` or `iree`."""
        ...

    def load(self, tensor: Tensor) -> Any:
        """A tensor as an array of this engine."""
        ...

    def unload(self, array: Any, dtype: str) -> Tensor:
        """An array as a tensor; the reference engine gives F64 for every float."""
        ...

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function from the operands to the node's results; a result that the node does not have is `None`."""
        ...
