"""Lets the forward passes of a training draw from a stream, from inside a loop that knows nothing of it.

Layers that are checkpointed run a second time in the backward pass. PyTorch then restores its generators, of which a
stream knows nothing; so such a layer is given the words again that it drew in the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from tallystick.frameworks.torch.randomness import ExplicitRandomness

Sheltered = Callable[[], AbstractContextManager[None]]


class SeededForward:
    """Runs the outermost call of a model, or of a part of it, under the current `stream`.

    Only calls in training mode with gradients count. `sheltered` gives a context that keeps errors away from the loop.
    While a log watches, the log answers from the streams in `asked` in place of a mode of its own, so that it sees the
    operators of the loop.
    """

    def __init__(self, model: nn.Module, sheltered: Sheltered = nullcontext) -> None:
        self.stream: ExplicitRandomness | None = None
        self.asked: list[ExplicitRandomness] | None = None
        self._modules, self._sheltered = frozenset(model.modules()), sheltered
        self._outer: nn.Module | None = None
        self._starts: dict[nn.Module, list[Any]] = {}
        self._again: list[tuple[nn.Module, ExplicitRandomness]] = []
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Hook all modules; no hook goes with a copy of the model."""
        self._hooks = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        ]

    def begin(self, stream: ExplicitRandomness) -> None:
        """Draw from another stream from now on: that of the next step."""
        self.stream, self._starts = stream, {}

    def close(self) -> None:
        """Remove the hooks, and leave the stream if a forward pass is running."""
        for hook in self._hooks:
            hook.remove()
        if self._outer is not None:
            self._leave()
        self._hooks, self.stream = [], None

    def entered(self, module: nn.Module) -> None:
        """A module begins to run, in a forward pass or again in a backward pass."""
        if self.stream is None or module not in self._modules:
            return
        if _current_graph_task_id() != -1:
            self._run_again(module)
            return
        if self._outer is None and module.training and torch.is_grad_enabled():
            self._outer = module
            self._push(self.stream)
        if self._outer is not None:
            self._starts.setdefault(module, []).append(self.stream.place)

    def left(self, module: nn.Module) -> None:
        """A module has run, or failed."""
        if self._again and self._again[-1][0] is module:
            self._pop(self._again.pop()[1])
        elif self._outer is module:
            self._leave()

    def _run_again(self, module: nn.Module) -> None:
        assert self.stream is not None
        if not self._again and self._starts.get(module):
            again = self.stream.at(self._starts[module].pop())
            self._again.append((module, again))
            self._push(again)

    def _leave(self) -> None:
        self._outer = None
        assert self.stream is not None
        self._pop(self.stream)

    def _push(self, stream: ExplicitRandomness) -> None:
        if self.asked is not None:
            self.asked.append(stream)
        else:
            stream.__enter__()  # type: ignore[no-untyped-call]
        stream.begins()

    def _pop(self, stream: ExplicitRandomness) -> None:
        stream.ends()
        if self.asked is not None:
            self.asked.pop()
        else:
            stream.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _before(self, module: nn.Module, _args: Any) -> None:
        with self._sheltered():
            self.entered(module)

    def _after(self, module: nn.Module, _args: Any, _result: Any) -> None:
        with self._sheltered():
            self.left(module)


@contextmanager
def recomputed(model: nn.Module, stream: ExplicitRandomness) -> Iterator[None]:
    """A context in which layers that run again in a backward pass draw what they drew before from `stream`."""
    seeded = SeededForward(model)
    seeded.begin(stream)
    seeded.start()
    try:
        yield
    finally:
        seeded.close()
