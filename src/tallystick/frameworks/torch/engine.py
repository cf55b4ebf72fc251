"""Graphs of ATen operators executed by PyTorch's own kernels, operator by operator.

An operator's name is looked up on the allow-list first; only then is the overload of that name taken from PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.dtypes import DTYPES
from tallystick.frameworks.torch.kernels import CRASHES, prepared, refusal, results_of
from tallystick.frameworks.torch.prepared_graph import PreparedGraph
from tallystick.frameworks.torch.tensors import from_tensor, to_tensor
from tallystick.graphs.engine import Arguments
from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.operators.registry import operator
from tallystick.tensors.tensor import Tensor


class TorchEngine:
    """PyTorch in eager mode on one device; implements `graphs.Engine`.

    Raises `UnavailableError` if the device is missing or a kernel does not run.
    """

    def __init__(self, device: str = "cpu") -> None:
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UnavailableError("there is no CUDA device here")
        self.device = device

    @property
    def name(self) -> str:
        """`torch-nnpack` on CPUs without oneDNN, where NNPACK may compute convolutions by transforms of tiles."""
        has_nnpack = torch.backends.nnpack.is_available()  # type: ignore[no-untyped-call]
        transforms = has_nnpack and torch._C._get_nnpack_enabled() and not torch.backends.mkldnn.enabled
        return "torch-nnpack" if self.device == "cpu" and transforms else "torch"

    def load(self, tensor: Tensor) -> torch.Tensor:
        """A new tensor on the device of the engine."""
        return from_tensor(tensor).to(self.device)

    def unload(self, array: torch.Tensor, dtype: str) -> Tensor:
        """The canonical bytes of a tensor."""
        assert array.dtype == DTYPES[dtype]
        return to_tensor(array)

    def place(self, array: torch.Tensor) -> int | None:
        """The address of an array whose canonical bytes lie in memory as they are; `None` for other strides."""
        return array.data_ptr() if array.is_contiguous() else None

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function from operands to results; raises `MalformedError` for an operator not on the allow-list."""
        call = prepared(node, self.device)
        names = [parameter.name for parameter in operator(node.operator).parameters if parameter.is_operand]

        def run(arguments: Arguments) -> tuple[Any, ...]:
            try:
                with torch.inference_mode(not differentiable):
                    return results_of(node, call(*(arguments[name] for name in names)))
            except CRASHES as error:
                raise refusal(node, error) from error

        return run

    def compile(self, graph: Graph, consumed: Collection[Ref] = ()) -> PreparedGraph:
        """`graph` as prepared calls; a run may overwrite the tensors of the inputs `consumed`."""
        return PreparedGraph.of(graph, self.device, consumed)
