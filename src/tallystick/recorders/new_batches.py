"""Notices a batch of a new kind before the model reads it, so that its first step can be checked.

A recorder is told of a batch when its step is over. The check of a step needs the state before it, and to keep that of
every step costs too much. So the shapes in the calls of the model are noted, and whether their masks are full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.recorders.model_hook import EagerHook
from tallystick.tensors.tensor import Tensor
from tallystick.workloads.masks import full_masks

KINDS_MAX: Final = 4096
"""How many kinds of calls are told apart; steps of later ones are checked as steps of old ones are."""


class NewBatches:
    """Calls `comes` before a call of `model` that trains and is the first of its kind, until it is closed.

    A step may call the model several times: the kind of a call is its own shapes after those of the calls before it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        comes: Callable[[], None],
        sheltered: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._comes, self._sheltered = comes, sheltered
        self._kinds, self._step = set[int](), list[object]()
        self._hook = model.register_forward_pre_hook(EagerHook(self._called), with_kwargs=True)

    def next_step(self) -> None:
        """Begin a step."""
        self._step = []

    def close(self) -> None:
        """Notice no more."""
        self._hook.remove()

    def enters(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a call of the model; hooks that were added inside of a hook miss that."""
        self._step.append(kind_of_call(args, kwargs))
        kind = hash(tuple(self._step))
        if kind not in self._kinds and len(self._kinds) < KINDS_MAX:
            self._kinds.add(kind)
            self._comes()

    def _called(self, _model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if torch.is_grad_enabled():
            with self._sheltered():
                self.enters(args, kwargs)


def kind_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """The shapes of the tensors in a call, and which of its masks are full."""
    given = dict(_tensors({**kwargs, **{f"x{number}": value for number, value in enumerate(args)}}))
    tables: dict[str, Tensor] = {name: to_tensor(value) for name, value in given.items() if _may_mask(value)}
    shapes = tuple((name, value.dtype, tuple(value.shape)) for name, value in sorted(given.items()))
    return shapes, full_masks(tables)


def _tensors(given: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, value) for name, value in given.items() if isinstance(value, torch.Tensor))


def _may_mask(value: torch.Tensor) -> bool:
    return value.ndim == 2 and not value.is_floating_point()
