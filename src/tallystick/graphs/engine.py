"""What runs a graph: an engine turns tensors into its own arrays, and a node into something that can be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from tallystick.graphs.graph import Node
from tallystick.tensors.tensor import Tensor

Arguments: TypeAlias = Mapping[str, Any]
"""The operands of a node by parameter: an array, a tuple of arrays and `None`s, or `None`."""


class Engine(Protocol):
    """A way of computing operators; raises `UnavailableError` for one that it does not know."""

    @property
    def name(self) -> str:
        """Such as `reference`, `torch`, `jax` or `iree`."""
        ...

    def load(self, tensor: Tensor) -> Any:
        """A tensor as an array of this engine."""
        ...

    def unload(self, array: Any, dtype: str) -> Tensor:
        """An array as a tensor; the reference engine gives F64 for every float."""
        ...

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function from operands to the node's results (`None` where the node has none)."""
        ...
