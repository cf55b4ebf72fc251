"""A function of tensors as a list of PyTorch's kernels, without the Python that called them.

What depends on fixed tensors alone, such as weights, is computed once; what is computed twice is computed once too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

SAME: Final = frozenset({"aten.expand.default", "aten.view.default", "aten.reshape.default", "aten.detach.default"})
"""Kernels that give their operand back where its shape does not change."""


def trace(function: Callable[..., Any], examples: Sequence[torch.Tensor]) -> GraphModule | None:
    """The kernels that `function` calls on tensors like `examples`; `None` where it looks at elements to decide."""
    try:
        module = make_fx(function)(*examples)
    except RuntimeError:  # PyTorch's answer to a decision that depends on elements
        return None
    module.graph.eliminate_dead_code()
    return module


class TracedCall:
    """A traced function whose inputs at the places `fixed` are known."""

    def __init__(self, module: GraphModule, fixed: Mapping[int, torch.Tensor]) -> None:
        self._held: list[Any] = []
        self._inputs: list[tuple[int, int]] = []
        self._steps: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[tuple[int, int]], int]] = []
        self._slots: dict[Node, int] = {}
        known: dict[Node, Any] = {}
        seen: dict[Any, Node] = {}
        place = 0
        for node in module.graph.nodes:
            if node.op == "placeholder":
                if place in fixed:
                    known[node] = fixed[place]
                else:
                    self._inputs.append((place, self._slot(node)))
                place += 1
            elif node.op == "get_attr":
                known[node] = getattr(module, node.target)
            elif node.op == "output":
                self._results = [known[each] if each in known else self._slots[each] for each in node.args[0]]
            else:
                self._call(node, known, seen)

    @torch.inference_mode()
    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results; `inputs` has all places, and those that are fixed are not read."""
        held = list(self._held)
        for place, slot in self._inputs:
            held[slot] = inputs[place]
        for kernel, arguments, named, slots, result in self._steps:
            given = list(arguments)
            for place, slot in slots:
                given[place] = held[slot]
            held[result] = kernel(*given, **named)
        return [held[each] if isinstance(each, int) else each for each in self._results]

    def _slot(self, node: Node) -> int:
        self._slots[node] = len(self._held)
        self._held.append(None)
        return self._slots[node]

    def _call(self, node: Node, known: dict[Node, Any], seen: dict[Any, Node]) -> None:
        if all(each in known for each in node.all_input_nodes):
            known[node] = node.target(*map_arg(node.args, known.get), **map_arg(node.kwargs, known.get))  # type: ignore[operator]
            return
        names = map_arg((node.args, node.kwargs), lambda each: f"%{self._slots.get(each, each.name)}")
        same = _operand(node) or seen.setdefault((str(node.target), repr(names)), node)
        if same is not node:
            self._slots[node] = self._slots[same]
            return
        kernel: Any = getattr(node.target, "_op", node.target)
        arguments: tuple[Any, ...] = node.args
        named: dict[str, Any] = dict(node.kwargs)
        if any(not isinstance(each, Node) and _nodes(each) for each in (*arguments, named)):
            kernel, arguments, named = _flat(node), tuple(node.all_input_nodes), {}
        pairs = list(enumerate(arguments))
        places = [(place, self._slots[each]) for place, each in pairs if isinstance(each, Node) and each not in known]
        template = tuple(known.get(each) if isinstance(each, Node) else each for each in arguments)
        self._steps.append((kernel, template, named, places, self._slot(node)))


def _operand(node: Node) -> Node | None:
    """The operand that a node gives back as it is."""
    if str(node.target) not in SAME or not isinstance(node.args[0], Node):
        return None
    before, behind = (each.meta.get("val") for each in (node.args[0], node))
    return node.args[0] if before is not None and behind is not None and before.shape == behind.shape else None


def _nodes(given: Any) -> list[Node]:
    found: list[Node] = []
    map_arg(given, found.append)
    return found


def _flat(node: Node) -> Callable[..., Any]:
    """A kernel with lists of tensors, as a function of its tensors."""
    names = node.all_input_nodes

    def call(*tensors: torch.Tensor) -> Any:
        values = dict(zip(names, tensors, strict=True))
        return node.target(*map_arg(node.args, values.get), **map_arg(node.kwargs, values.get))  # type: ignore[operator]

    return call
