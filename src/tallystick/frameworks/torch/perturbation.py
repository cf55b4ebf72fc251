"""A graph run with a small error added to every result, differentiable in those errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tallystick.frameworks.torch.engine import TorchEngine

from tallystick.graphs import Graph, Node, Ref
from tallystick.graphs.values import operands_of
from tallystick.tensors import Tensor

Shares = Mapping[Ref, torch.Tensor]


class PerturbedRun:
    """Runs `graph` with `share · radius` added to each result that has a radius.

    Radii are given per result in the result's unit; a share of 1 moves an element by its whole radius.
    """

    def __init__(self, graph: Graph, bindings: Mapping[Ref, Tensor], radii: Mapping[Ref, Any]) -> None:
        self.graph = graph
        engine = TorchEngine()
        self._sources = {value.name: engine.load(bindings[value.name]) for value in (*graph.inputs, *graph.constants)}
        self._steps: list[tuple[Node, Callable[..., Any]]] = [(node, engine.prepare(node)) for node in graph.nodes]
        self.radii = {ref: torch.as_tensor(radius) for ref, radius in radii.items()}

    def values(self, shares: Shares) -> dict[Ref, torch.Tensor]:
        """Every value of the run, the errors added on the way."""
        held: dict[Ref, Any] = dict(self._sources)
        for node, run in self._steps:
            results = run(operands_of(node, held))
            for ref, result in zip(node.outputs, results, strict=True):
                if ref is not None:
                    held[ref] = self._moved(ref, result, shares)
        return held

    def _moved(self, ref: Ref, result: torch.Tensor, shares: Shares) -> torch.Tensor:
        share = shares.get(ref)
        return result if share is None else result + (share * self.radii[ref]).to(result.dtype)
