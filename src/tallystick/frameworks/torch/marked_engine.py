"""An engine that says to torch.profiler which node of the graph it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.graphs.engine import Arguments
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Graph, Node
from tallystick.tensors.tensor import Tensor


class MarkedEngine(TorchEngine):
    """`TorchEngine` whose nodes stand in spans `tally:node N`."""

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """What `TorchEngine` prepares, in a span."""
        run = super().prepare(node, differentiable)

        def marked(arguments: Arguments) -> tuple[Any, ...]:
            with record_function(f"tally:node {node.number} {node.operator}"):
                return run(arguments)

        return marked


def profile_graph(graph: Graph, bindings: Mapping[str, Tensor], step: int, file: Path, device: str = "cpu") -> None:
    """Execute a graph as step `step` under torch.profiler, and write what it saw to `file`.

    Raises `UnavailableError` where a kernel refuses its operands, or the device is not here.
    """
    engine = MarkedEngine(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    execute(graph, bindings, engine)  # the first time, kernels are chosen and memory is taken
    with profile(activities=activities, record_shapes=True) as seen, record_function(f"tally:step {step}"):
        execute(graph, bindings, engine)
        if device == "cuda":
            torch.cuda.synchronize()
    seen.export_chrome_trace(str(file))
