"""Kernels that compute with other attributes or results than they state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tallystick.engines.torch.engine import TorchEngine
from tallystick.programs.execution import Arguments
from tallystick.programs.graph import Node

Change = Callable[[Node, Arguments, tuple[Any, ...]], tuple[Any, ...]]
"""A function of a node, its operands and its results that returns the results to use instead."""


class PractisingEngine(TorchEngine):
    """PyTorch, but some nodes, by number, are computed as other nodes, for example with another attribute."""

    def __init__(self, practised: Mapping[int, Node]) -> None:
        super().__init__()
        self._practised = practised

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """The kernel of the node that replaces this one, if there is one."""
        return super().prepare(self._practised.get(node.number, node), differentiable)


class ChangingEngine(TorchEngine):
    """PyTorch with changed results: `change` returns for each node how to change them, or `None`."""

    def __init__(self, change: Callable[[Node], Change | None]) -> None:
        super().__init__()
        self._change = change

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """The honest kernel, followed by a change if there is one."""
        run, change = super().prepare(node, differentiable), self._change(node)
        return run if change is None else (lambda arguments: change(node, arguments, run(arguments)))
