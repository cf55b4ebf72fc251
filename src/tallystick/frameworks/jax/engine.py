"""JAX as an engine: XLA runs StableHLO nodes; operators of other dialects run by their definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np

from tallystick.errors import UnavailableError
from tallystick.frameworks.jax.emission import WRITERS, Signature, graph_function, module_text, node_function
from tallystick.frameworks.jax.programs import ALGEBRA, Program, compiled, defined
from tallystick.frameworks.jax.signatures import Key, bound, flat, key_of, spread
from tallystick.graphs.engine import Arguments
from tallystick.graphs.graph import Graph, Node
from tallystick.tensors.dtypes import dtype_of
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor


class JaxEngine:
    """XLA on one device. Each distinct node is compiled when it first runs."""

    name: Final = "jax"

    def __init__(self, platform: str = "cpu") -> None:
        try:
            self._device = jax.devices(platform)[0]
        except RuntimeError as error:
            raise UnavailableError(f"JAX has no device {platform[:40]!r}: {str(error)[:100]}") from None
        self._programs: dict[Key, Program] = {}

    def load(self, tensor: Tensor) -> Any:
        """An array on the device."""
        with jax.enable_x64(True), jax.default_device(self._device):
            return ALGEBRA.load(tensor).array

    def unload(self, array: Any, dtype: str) -> Tensor:
        """The bytes of an array."""
        return Tensor.of(ALGEBRA.library.storage(array), dtype)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function that runs the node; it compiles it first if operands like these are new."""

        def run(arguments: Arguments) -> tuple[Any, ...]:
            arrays = flat(arguments, node)
            signature = Signature(node, tuple(map(spec_of, arrays)))
            return spread(self._program(signature)(arrays), node.results)

        return run

    def run(self, graph: Graph, bindings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of a StableHLO graph, compiled as one program; XLA may fuse operators."""
        arrays = [self.load(tensor) for tensor in bound(graph, bindings)]
        program = compiled(module_text([graph_function(graph)]), "the graph", self._device)
        results, specs = program(arrays), graph.specs()
        return {
            output.name: self.unload(array, specs[output.value].dtype)
            for output, array in zip(graph.outputs, results, strict=True)
        }

    def _program(self, signature: Signature) -> Program:
        key = key_of(signature)
        if key not in self._programs:
            self._programs[key] = self._made(signature)
        return self._programs[key]

    def _made(self, signature: Signature) -> Program:
        if signature.node.operator in WRITERS:
            return compiled(module_text([node_function(signature)]), signature.node.operator, self._device)
        return defined(signature, self._device)


def spec_of(array: Any) -> TensorSpec:
    """Dtype and shape of an array of JAX."""
    is_bfloat16 = array.dtype == ALGEBRA.library.dtype("BF16")
    return TensorSpec("BF16" if is_bfloat16 else dtype_of(np.dtype(array.dtype)), tuple(array.shape))
