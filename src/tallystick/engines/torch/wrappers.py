"""Models and optimizers as loops hold them: wrapped by libraries, in turn, with averages of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.formats.spec import AverageRule, Form
from tallystick.programs.step_names import AVERAGE, AVERAGED

# Several optimizers that step in turn, as one: Muon for matrices and AdamW for the rest.


class InTurn(torch.optim.Optimizer):
    """Optimizers over different parameters, each of which steps once in a step of the loop.

    Groups and states are those of the optimizers, in their order. It is only read: the loop steps them itself.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(optimizers)  # nothing of `Optimizer` is set up, because no step is taken here

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all optimizers."""
        return [group for each in self.optimizers for group in each.param_groups]

    @property
    def state(self) -> dict[torch.Tensor, Any]:  # type: ignore[override]
        """What the optimizers keep, by parameter."""
        return {parameter: kept for each in self.optimizers for parameter, kept in each.state.items()}

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook` before the first of the optimizers steps."""
        taken = [0] * len(self.optimizers)

        def steps(index: int, args: Any, kwargs: Any) -> None:
            if len(set(taken)) == 1:
                hook(self, args, kwargs)
            taken[index] += 1

        return self._registered("register_step_pre_hook", steps)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook` when all have stepped; also where one steps again before that, which is a step too many."""
        taken = [0] * len(self.optimizers)

        def stepped(index: int, args: Any, kwargs: Any) -> None:
            taken[index] += 1
            if len(set(taken)) == 1 or taken[index] > min(taken) + 1:
                hook(self, args, kwargs)

        return self._registered("register_step_post_hook", stepped)

    def _registered(self, register: str, hook: Callable[[int, Any, Any], None]) -> Any:
        """Register a hook that gets the index of the optimizer that steps in place of the optimizer."""

        def registered(index: int, optimizer: torch.optim.Optimizer) -> Any:
            return getattr(optimizer, register)(lambda _, args, kwargs: hook(index, args, kwargs))

        return HookHandles([registered(index, optimizer) for index, optimizer in enumerate(self.optimizers)])


class HookHandles:
    """The handles of one hook on several optimizers."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Remove the hook from all."""
        for each in self._handles:
            each.remove()


# Unwraps models and optimizers that libraries have wrapped.

SHARDS: Final = frozenset({"FullyShardedDataParallel", "FSDPModule"})
"""Classes of FSDP 1 and 2, by name: importing them only for a check would be slow."""


def inner_model(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile`, `DistributedDataParallel` or `DataParallel`; its tensors have no prefixes."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif is_compiled_wrapper(model):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def is_compiled_wrapper(model: nn.Module) -> bool:
    """Whether `torch.compile` returned this; its class is not imported, because that takes seconds."""
    return type(model).__name__ == "OptimizedModule" and "_orig_mod" in model._modules


def is_compiled(model: nn.Module) -> bool:
    """Whether calling the model runs compiled kernels, as far as its attributes show."""
    found = model
    while isinstance(found, DistributedDataParallel | DataParallel):
        found = found.module
    return is_compiled_wrapper(found) or getattr(found, "_compiled_call_impl", None) is not None


@contextmanager
def plain_forward(model: nn.Module) -> Iterator[None]:
    """A model without the mixed precision that accelerate wraps its forward pass in."""
    wrapped, plain = model.__dict__.get("forward"), model.__dict__.get("_original_forward")
    if wrapped is None or plain is None:
        yield
        return
    model.forward = plain
    try:
        yield
    finally:
        model.forward = wrapped


def inner_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The PyTorch optimizer inside wrappers such as those of `accelerate`; of a list, one that stands for all.

    Raises `UnavailableError` if there is none.
    """
    if isinstance(optimizer, list | tuple):
        return InTurn([inner_optimizer(each) for each in optimizer])
    found = optimizer
    while not isinstance(found, torch.optim.Optimizer) or hasattr(found, "optimizer"):
        if not hasattr(found, "optimizer"):
            raise UnavailableError(f"{type(optimizer).__name__} is no optimizer of torch.optim, nor around one")
        found = found.optimizer
    return found


def sharding_of(model: nn.Module) -> str:
    """Why a model is sharded, that is, this process holds only parts of its tensors (FSDP); empty if it is whole."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if hasattr(value, "to_local"):  # a DTensor; importing its class only for this check would be slow
            return f"{name} is sharded over processes (FSDP)"
    # inside a forward pass the tensors are whole; FSDP2 adds a base to the class of each module it shards
    bases = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    return "the model is sharded over processes (FSDP)" if bases & SHARDS else ""


def require_whole(model: nn.Module) -> None:
    """Raise `UnavailableError` for a model that is sharded."""
    if found := sharding_of(model):
        raise UnavailableError(f"{found}, and a record is of whole tensors; train unsharded, in one process")


# Exponential moving averages of weights, which a loop keeps beside its model.


@dataclass(frozen=True)
class Ema:
    """The averaged weights of a loop and how it updates them, between the step of the optimizer and its record.

    Args:
        model: a `torch.optim.swa_utils.AveragedModel`, or a module with the averages under the names of the model.
        decay: the share of the old average that is kept in an update.
        form: "lerp" for `lerp_` and `get_ema_multi_avg_fn`, "sum" for `mul_` and `add_`, "difference" for
            `a.sub_((1 - decay) * (a - w))`, as diffusers does.

    Raises `UsageError` for a decay or a form that is none.
    """

    model: nn.Module
    decay: float
    form: Form = "lerp"

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1 or self.form not in FORMS:
            raise UsageError(f"Ema: a decay from 0 to 1 and one of the forms {', '.join(FORMS)} are needed")

    @cached_property
    def rule(self) -> AverageRule:
        """What a spec states of it."""
        return AverageRule(decay=float(self.decay), form=self.form, counts=self._count is not None)

    @property
    def _count(self) -> torch.Tensor | None:
        found: Any = getattr(self.model, "n_averaged", None)
        return found if isinstance(found, torch.Tensor) else None

    def live(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """The averages of the weights of `model` by their names in the state, and the count of updates if there is one.

        Raises `UsageError` where an average of a weight is not there, or has another form.
        """
        held: Any = self.model.module if self._count is not None else self.model
        averages, found = dict(inner_model(held).named_parameters()), dict[str, torch.Tensor]()
        for name, weight in model.named_parameters():
            average = averages.get(name)
            if average is None or (average.shape, average.dtype) != (weight.shape, weight.dtype):
                raise UsageError(f"Ema: no average of {name}, {tuple(weight.shape)} in {weight.dtype}")
            found[f"{AVERAGE}{name}"] = average
        return found | ({} if self._count is None else {AVERAGED: self._count})

    def updated(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The averages after a step by their names in the state, which holds the new weights and the old averages."""
        count = None if self._count is None else state[AVERAGED]
        updated = dict[str, torch.Tensor]() if count is None else {AVERAGED: count + 1}
        for name in (name for name in state if name.startswith(AVERAGE)):
            weight = state[f"weights.{name.removeprefix(AVERAGE)}"]
            moved = FORMS[self.rule.form](state[name], weight, self.rule.decay)
            updated[name] = moved if count is None else torch.where(count == 0, weight, moved)
        return updated


FORMS: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    "lerp": lambda average, weight, decay: torch.lerp(average, weight, 1 - decay),
    "sum": lambda average, weight, decay: torch.add(average * decay, weight, alpha=1 - decay),
    "difference": lambda average, weight, decay: average - (1 - decay) * (average - weight),
}
