"""Follows through a trace which part of the model is running, so that each node keeps its module."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx
from torch.fx import traceback

LOSS: Final = "loss"
UPDATE: Final = "update of "
CLIPPING: Final = "gradient norm"

# Follows through a trace which part of the model is running, so that each node keeps the module it came from.
#
# `torch.export` knows the module of every node; tracing the exported program again loses it. So a call is put into the
# program wherever the module changes, and these calls note the module for the nodes that are traced after them. An
# operator's gradient belongs to the module that made the gradient's function: autograd numbers these functions in the
# order in which they are made.

KEY: Final = "tallystick_module"
BACKWARD: Final = "backward of "


@dataclass
class ModuleTrail:
    """The module that runs now, and the modules that ran before each function of autograd was made.

    One that does not listen forgets all, and no node has a module. The graph is the same; a verifier needs no more.
    """

    listens: bool = True
    _firsts: list[int] = field(default_factory=list)
    _paths: list[str] = field(default_factory=list)

    def kept(self) -> AbstractContextManager[None]:
        """Keep the modules of the nodes that are traced inside."""
        return traceback.preserve_node_meta() if self.listens else nullcontext()

    def enter(self, path: str) -> None:
        """From now on, `path` runs."""
        if self.listens:
            note(path)
            self._firsts.append(torch._C._autograd._get_sequence_nr())
            self._paths.append(path)

    def follow(self, loss: torch.Tensor) -> None:
        """Note the module of every function through which the gradient of `loss` will pass next."""
        for function in _functions(loss.grad_fn) if self.listens else ():
            place = bisect_right(self._firsts, function._sequence_nr()) - 1
            if place >= 0:
                path = BACKWARD + (self._paths[place] or LOSS)
                function.register_prehook(lambda _gradients, path=path: note(path))

    def mark_call(self, call: torch.nn.Module) -> None:
        """Put into `call`, an exported call of the model, what tells its modules, which `torch.export` knows."""
        if self.listens:
            _mark(call, exported_module, self.enter)

    def mark_step(self, step: fx.GraphModule) -> None:
        """Put into `step` what notes again the modules that were noted for its nodes, when it is traced once more."""
        if self.listens:
            _mark(step, self.module_of, note)

    def module_of(self, node: fx.Node) -> str:
        """What was noted when a node was traced; empty if nothing was."""
        return str(node.meta.get("custom", {}).get(KEY, ""))


NO_TRAIL: Final = ModuleTrail(listens=False)


def note(path: str) -> None:
    """The nodes that are traced from now on belong to `path`."""
    traceback.get_current_meta()["custom"] = {KEY: path}


def exported_module(node: fx.Node) -> str:
    """The module of a node of an exported program; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    return str([*stack.values()][-1][0]) if stack else ""


def _mark(program: torch.nn.Module, place: Callable[[fx.Node], str], enter: Callable[[str], None]) -> None:
    """Put `enter(path)` into the graphs of `program` wherever the module of the nodes changes."""
    for module in (each for each in program.modules() if isinstance(each, fx.GraphModule)):
        path: str | None = None
        for node in list(module.graph.nodes):
            if node.op == "call_function" and place(node) != path:
                path = place(node)
                with module.graph.inserting_before(node):
                    module.graph.call_function(enter, (path,))
        module.recompile()


def _functions(first: Any) -> Iterator[Any]:
    """The functions of autograd from `first` on, each once, without those that only store a gradient."""
    seen, waiting = set[int](), [first]
    while waiting:
        function = waiting.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        waiting += [after for after, _ in function.next_functions]
        if function.name() != "torch::autograd::AccumulateGrad":
            yield function
