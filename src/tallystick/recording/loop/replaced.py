"""What a recording replaces in a model: hooks that no copy carries, and recurrent kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tallystick.engines.torch.recurrent import unrolled
from tallystick.recording.boundary import warn

# Hooks on a model of somebody else's that go with no copy of it.


class ModelHook:
    """A forward hook or forward pre-hook: calls `called`, uncompiled even if the model is compiled.

    A copy of the model, or a file of it that `torch.save` writes, has a hook that does nothing in its place: the method
    `nullcontext.__exit__`, which takes anything and returns `None`. So a loop may copy and save its model, the copies
    are not watched, and the file can be read where this package is not installed.
    """

    def __init__(self, called: Callable[..., None]) -> None:
        self._called = called

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *given: Any) -> None:
        """Call what the hook was made with."""
        self._called(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class EagerHook(ModelHook):
    """A hook that does nothing inside of a compiled model, where it would split the model into two programs."""

    def __call__(self, *given: Any) -> None:
        """Call what the hook was made with, unless this is being compiled."""
        if not torch.compiler.is_compiling():
            self._called(*given)


# Recurrent layers run in operators that graphs have while a loop is recorded.
#
# oneDNN computes a whole LSTM in one call and keeps what its gradient needs in a form of its own, which no graph holds.
# So an LSTM on a CPU runs with PyTorch's own kernels, whose results differ from oneDNN's in the last bits. While the
# first step is watched, LSTM and GRU run cell by cell, with the bits of these kernels.

CHANGED: Final = (
    "nn.LSTM runs with PyTorch's own kernels while it is recorded, because no graph holds what oneDNN keeps for the "
    "gradient; losses differ from an unrecorded training in the last digits"
)


@contextmanager
def own_kernels(model: nn.Module) -> Iterator[None]:
    """While the recurrent layers of `model` run forward; says so where oneDNN would be used."""
    layers = [each for each in model.modules() if isinstance(each, nn.LSTM | nn.GRU | nn.LSTMCell | nn.GRUCell)]
    if any(map(_uses_onednn, layers)):
        warn(CHANGED)
    running = ExitStack()

    def begin(layer: nn.Module, *_: object) -> None:
        if _uses_onednn(layer):
            running.enter_context(without_onednn())
        if _get_current_dispatch_mode_stack():
            running.enter_context(unrolled())

    def end(*_: object) -> None:
        running.close()

    with ExitStack() as hooks:
        for each in layers:
            hooks.callback(each.register_forward_pre_hook(ModelHook(begin)).remove)
            hooks.callback(each.register_forward_hook(ModelHook(end), always_call=True).remove)
        yield


@contextmanager
def without_onednn() -> Iterator[None]:
    """PyTorch's own kernels run in place of oneDNN's."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def _uses_onednn(module: nn.Module) -> bool:
    """Whether oneDNN would run it: an LSTM on a CPU without projections, of a float that oneDNN has."""
    if not isinstance(module, nn.LSTM) or module.proj_size or not torch.backends.mkldnn.enabled:
        return False
    weight = next(module.parameters())
    return weight.device.type == "cpu" and weight.dtype != torch.float64
