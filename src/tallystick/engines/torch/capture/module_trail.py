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

# What a capture tells about the part of the model that runs; nobody listens unless module paths are wanted.
#
# `module_trail` listens, for those who record. A verifier needs the graph alone, which is the same without it.

LOSS: Final = "loss"
UPDATE: Final = "update of "
CLIPPING: Final = "gradient norm"


class Trail:
    """Is told which part of the model runs, and forgets it: no node has a module."""

    def kept(self) -> AbstractContextManager[None]:
        """Keep the modules of the nodes that are traced inside."""
        return nullcontext()

    def enter(self, path: str) -> None:
        """From now on, `path` runs."""

    def follow(self, loss: torch.Tensor) -> None:
        """The gradient of `loss` is taken next."""

    def mark_call(self, call: torch.nn.Module) -> None:
        """Make `call`, an exported call of the model, tell its modules while it runs."""

    def mark_step(self, step: fx.GraphModule) -> None:
        """Make `step`, a traced step, tell its modules again when it is traced once more."""

    def module_of(self, node: fx.Node) -> str:
        """The module of a traced node; empty if it is not known."""
        return ""


NO_TRAIL: Final = Trail()


# Follows through a trace which part of the model is running, so that each node keeps the module it came from.
#
# `torch.export` knows the module of every node; tracing the exported program again loses it. So a call is put into the
# program wherever the module changes, and these calls note the module for the nodes that are traced after them. An
# operator's gradient belongs to the module that made the gradient's function: autograd numbers these functions in the
# order in which they are made.

KEY: Final = "tallystick_module"
BACKWARD: Final = "backward of "
Place = Callable[[fx.Node], str]


@dataclass
class ModuleTrail(Trail):
    """The module that runs now, and the modules that ran before each function of autograd was made."""

    _firsts: list[int] = field(default_factory=list)
    _paths: list[str] = field(default_factory=list)

    def kept(self) -> AbstractContextManager[None]:
        """Keep the modules of the nodes that are traced inside."""
        return traceback.preserve_node_meta()

    def enter(self, path: str) -> None:
        """From now on, `path` runs."""
        note(path)
        self._firsts.append(torch._C._autograd._get_sequence_nr())
        self._paths.append(path)

    def follow(self, loss: torch.Tensor) -> None:
        """Note the module of every function through which the gradient of `loss` will pass."""
        for function in _functions(loss.grad_fn):
            place = bisect_right(self._firsts, function._sequence_nr()) - 1
            if place >= 0:
                function.register_prehook(_noting(BACKWARD + (self._paths[place] or LOSS)))

    def mark_call(self, call: torch.nn.Module) -> None:
        """Put into `call` what tells its modules, which `torch.export` knows."""
        mark(call, exported_module, self.enter)

    def mark_step(self, step: fx.GraphModule) -> None:
        """Put into `step` what notes again the modules that were noted for its nodes."""
        mark(step, self.module_of, note)

    def module_of(self, node: fx.Node) -> str:
        """What was noted when a node was traced; empty if nothing was."""
        return str(node.meta.get("custom", {}).get(KEY, ""))


def note(path: str) -> None:
    """The nodes that are traced from now on belong to `path`."""
    traceback.get_current_meta()["custom"] = {KEY: path}


def exported_module(node: fx.Node) -> str:
    """The module of a node of an exported program; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    return str([*stack.values()][-1][0]) if stack else ""


def mark(program: torch.nn.Module, place: Place, enter: Callable[[str], None]) -> None:
    """Put `enter(path)` into the graphs of `program` wherever the module of the nodes changes."""
    for module in program.modules():
        if isinstance(module, fx.GraphModule):
            _mark(module, place, enter)


def _mark(module: fx.GraphModule, place: Place, enter: Callable[[str], None]) -> None:
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


def _noting(path: str) -> Callable[[Any], None]:
    def prehook(_gradients: Any) -> None:
        note(path)

    return prehook
