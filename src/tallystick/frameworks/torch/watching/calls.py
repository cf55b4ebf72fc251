"""One operator call of a watched loop as data: tensors are replaced by numbers, so none is kept alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tallystick.frameworks.torch.randomness import is_random


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor in a call: its number, and how often it had been written to when it was read."""

    number: int
    writes: int


@dataclass(frozen=True, slots=True)
class LoopCall:
    """An operator with its arguments and results, and the storages that it writes to.

    `module` is the part of the model that called it; empty for the loop. `is_seeded` means that it drew random numbers
    from a stream.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: Any
    written: frozenset[int]
    with_gradient: bool
    module: str
    is_seeded: bool = False

    @property
    def operands(self) -> Iterator[Place]:
        """The tensors that it reads."""
        yield from places((self.args, self.kwargs))

    @property
    def name(self) -> str:
        """The name of the operator, such as `aten.mul.Tensor`."""
        return str(self.target)

    @property
    def is_random(self) -> bool:
        """Whether the operator draws random numbers, from a stream or from a generator."""
        return is_random(self.target, self.args, self.kwargs)

    def filled(self, values: Mapping[int, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the tensors of these numbers."""

        def tensor(place: Place) -> torch.Tensor:
            return values[place.number]

        return mapped(self.args, Place, tensor), mapped(dict(self.kwargs), Place, tensor)


def mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """A nested value with each part of `kind` changed; tuples, lists and dicts stay what they are."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        changed = [mapped(item, kind, change) for item in value]
        return changed if isinstance(value, list) else tuple(changed)
    if isinstance(value, dict):
        return {name: mapped(item, kind, change) for name, item in value.items()}
    return value


def places(value: Any) -> Iterator[Place]:
    """The places in a nested value, in order."""
    if isinstance(value, Place):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from places(item)
    elif isinstance(value, dict):
        yield from places(list(value.values()))
