"""A graph run with a small error added to every result, differentiable in those errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tallystick.core.tensors import Tensor
from tallystick.engines.torch.engine import TorchEngine
from tallystick.programs.graph import Graph, Node, Ref, operands_of

Shares = Mapping[Ref, torch.Tensor]


class PerturbedRun:
    """Runs `graph` with `share · radius` added to each result that has a radius.

    Radii are given per result in the result's unit; a share of 1 moves an element by its whole radius. What gradients
    cannot reach, because neither an error nor anything computed from one goes in, is computed once.
    """

    def __init__(self, graph: Graph, bindings: Mapping[Ref, Tensor], radii: Mapping[Ref, Any]) -> None:
        engine = TorchEngine()
        self.radii = {ref: torch.as_tensor(radius) for ref, radius in radii.items()}
        self._fixed = {source.name: engine.load(bindings[source.name]) for source in graph.sources}
        self._steps: list[tuple[Node, Callable[..., Any]]] = []
        for node in graph.nodes:
            run = engine.prepare(node, differentiable=True)
            if self._is_fixed(node):
                self._fixed |= _named(node, run(operands_of(node, self._fixed)))
            else:
                self._steps.append((node, run))

    def values(self, shares: Shares) -> dict[Ref, torch.Tensor]:
        """Every value of the run, the errors added on the way."""
        held: dict[Ref, Any] = dict(self._fixed)
        for node, run in self._steps:
            results = _named(node, run(operands_of(node, held)))
            held |= {ref: self._moved(ref, result, shares) for ref, result in results.items()}
        return held

    def _is_fixed(self, node: Node) -> bool:
        return not any(ref in self.radii for ref in node.outputs) and all(ref in self._fixed for ref in node.refs)

    def _moved(self, ref: Ref, result: torch.Tensor, shares: Shares) -> torch.Tensor:
        share = shares.get(ref)
        return result if share is None else result + (share * self.radii[ref]).to(result.dtype)


def _named(node: Node, results: tuple[Any, ...]) -> dict[Ref, Any]:
    return {ref: result for ref, result in zip(node.outputs, results, strict=True) if ref is not None}
