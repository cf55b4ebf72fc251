"""Hooks on a model of somebody else's that go with no copy of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch


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
