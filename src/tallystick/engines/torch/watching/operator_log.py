"""Watches a loop below autograd and lists the operators that it calls, as data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch._C import _current_graph_task_id
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.weak import WeakIdKeyDictionary

from tallystick.engines.torch.capture.export import live_of
from tallystick.engines.torch.randomness import ExplicitRandomness, is_random

# One operator call of a watched loop as data: tensors are replaced by numbers, so none is kept alive.


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


# Watches a loop below autograd and lists the operators that it calls.
#
# No tensor is kept alive: a call holds numbers, and a tensor is known by a weak reference. Only the values of small
# tensors that come from elsewhere are copied, because they may be constants of the step.

CONSTANT_BYTES_MAX: Final = 1 << 20
CALLS_MAX: Final = 500_000
"""A first step with more calls is not watched to its end."""


@dataclass(frozen=True)
class Seen:
    """What is known of a tensor by its number; `value` is a copy of a small tensor that comes `from_elsewhere`."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    from_elsewhere: bool = False
    value: torch.Tensor | None = None


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The calls of one thread from `start` to `stop`, and where in them each backward pass began.

    `functions` are the custom functions of autograd that these passes go through.

    Calls inside a backward pass are not listed. In a forked process nothing is. `contain_errors` gives a context that
    keeps the errors of the watching away from the loop.
    """

    supports_higher_order_operators = True

    def __init__(self, model: torch.nn.Module, contain_errors: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._contain_errors = contain_errors
        self.calls: list[LoopCall] = []
        self.seen: list[Seen] = []
        self.backwards: list[int] = []
        self.functions: set[str] = set()
        self.trouble = ""
        self.draws: list[ExplicitRandomness] = []
        """The streams that random numbers come from now, the last one first; a generator's if there is none."""
        self._numbers: Any = WeakIdKeyDictionary()
        self._storages: dict[int, StorageWeakRef] = {}
        self._names = {module: name for name, module in model.named_modules()}
        self._running: list[str] = [""]
        self._hooks: list[Any] = []
        self._task, self._process, self._is_watching = -1, os.getpid(), False
        self._is_entered = False
        self.held = {self._number(value, is_known=True): name for name, value in live_of(model).items()}

    def start(self) -> None:
        """Watch from now on."""
        self._is_watching = self._is_entered = True
        self._hooks = [
            register_module_forward_pre_hook(self._enters),
            register_module_forward_hook(self._leaves, always_call=True),
        ]
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Watch no longer. Below a mode that the loop entered since, this one stays and idles until the next call.

        `torch.inference_mode` is such a mode too: at its end it puts back the dispatch keys that were there before, and
        with them that of this mode, which then nobody would answer to.
        """
        self._is_watching = False
        for hook in self._hooks:
            hook.remove()
        is_above = _get_current_dispatch_mode_stack()[-1:] == [self] and not torch.is_inference_mode_enabled()
        if self._is_entered and is_above:
            self._is_entered = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Drop what was listed, when nothing more is asked about it."""
        self.calls, self.seen, self._storages = [], [], {}
        self._numbers = WeakIdKeyDictionary()

    def numbered(self, value: torch.Tensor) -> int:
        """The number of a tensor that autograd has made, which gets one if no watched call has seen it."""
        return self._number(value, is_known=True)

    def number_of(self, value: torch.Tensor) -> int | None:
        """The number of a live tensor; `None` if no watched call has seen it."""
        found: int | None = self._numbers.get(value)
        return found

    def __torch_dispatch__(self, target: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if not self._is_watching or self.trouble or os.getpid() != self._process:
            return self._call(target, args, given)
        task, read = _current_graph_task_id(), None
        with self._contain_errors():
            if task != -1 and task != self._task:
                self.backwards.append(len(self.calls))
            self._task = task
            if task == -1:  # calls inside a backward pass are not listed
                read = mapped((args, given), torch.Tensor, self._place)
        results = self._call(target, args, given)
        with self._contain_errors():
            made = mapped(results, torch.Tensor, partial(self._place, is_known=True))
            if read is not None:
                self._add(target, read, made, (args, given))
        return results

    def _call(self, target: Any, args: Any, given: Any) -> Any:
        return self.draws[-1].call(target, args, given) if self.draws else target(*args, **given)

    def _add(self, target: Any, read: Any, made: Any, given: Any) -> None:
        if not isinstance(target, torch._ops.OpOverload):
            self.trouble = f"{target} is control flow or no tensor operator"
        elif len(self.calls) >= CALLS_MAX:
            self.trouble = f"more than {CALLS_MAX:,} operators ran before the first record"
        else:
            if target is torch.ops.aten.ones_like.default:
                self.functions |= custom_functions(given[0][0].grad_fn)
            writes = target._schema.is_mutable or str(target) in HIDDEN_WRITES
            written = frozenset(self._written(target, *given)) if writes else NOTHING
            args, kwargs = read
            with_gradient, module = torch.is_grad_enabled(), self._running[-1]
            is_seeded = bool(self.draws) and is_random(target, *given)
            self.calls.append(LoopCall(target, args, kwargs, made, written, with_gradient, module, is_seeded))

    def _enters(self, module: torch.nn.Module, _args: Any) -> None:
        self._running.append(self._names.get(module, self._running[-1]))

    def _leaves(self, _module: torch.nn.Module, _args: Any, _result: Any) -> None:
        if len(self._running) > 1:
            self._running.pop()

    def _written(self, target: Any, args: Any, kwargs: Any) -> list[int]:
        """The storages of the arguments that the schema says are written to."""
        schema = target._schema.arguments
        named = dict(zip((each.name for each in schema), args, strict=False)) | kwargs
        hidden = HIDDEN_WRITES.get(str(target), ())
        found: list[int] = []
        for each in schema:
            if each.name in hidden or (each.alias_info is not None and each.alias_info.is_write):
                mapped(named.get(each.name), torch.Tensor, lambda value: found.append(self._storage(value)))
        return found

    def _place(self, value: torch.Tensor, is_known: bool = False) -> Place:
        return Place(self._number(value, is_known), 0 if value.is_inference() else value._version)

    def _number(self, value: torch.Tensor, is_known: bool = False) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.seen)
            is_kept = not is_known and has_memory(value) and value.nbytes <= CONSTANT_BYTES_MAX
            kept = value.detach().clone() if is_kept else None
            self.seen.append(Seen(self._storage(value), value.dtype, tuple(value.shape), not is_known, kept))
        return int(number)

    def _storage(self, value: torch.Tensor) -> int:
        """A storage by its address, which no other storage gets as long as a weak reference is held."""
        if not has_memory(value):
            return -1 - id(value)
        reference = StorageWeakRef(value.untyped_storage())  # type: ignore[no-untyped-call]
        return int(self._storages.setdefault(reference.cdata, reference).cdata)


NOTHING: Final[frozenset[int]] = frozenset()
HIDDEN_WRITES: Final[Mapping[str, tuple[str, ...]]] = {
    "aten.native_batch_norm.default": ("running_mean", "running_var"),
    "aten.cudnn_batch_norm.default": ("running_mean", "running_var"),
    "aten.miopen_batch_norm.default": ("running_mean", "running_var"),
}
"""Arguments that an operator writes to although its schema does not say so."""


def custom_functions(node: Any) -> set[str]:
    """The names of the functions behind a node of autograd whose backward pass is written in Python."""
    found, seen, waiting = set[str](), {node}, [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BackwardCFunction):
            found.add(type(each).__name__.removesuffix("Backward"))
        following = {other for other, _ in getattr(each, "next_functions", ()) if other is not None} - seen
        seen |= following
        waiting.extend(following)
    return found


def has_memory(value: torch.Tensor) -> bool:
    """Whether a tensor is a plain one with a storage."""
    return value.layout is torch.strided and type(value) in {torch.Tensor, torch.nn.Parameter}
