"""What keeps a training from being replayed: everything that can be seen before its first step, together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.optimizers import begins_otherwise, rules_of, unsupported
from tallystick.engines.torch.randomness import config_that_drops, describe_dropout, dropout_is_known
from tallystick.engines.torch.wrappers import inner_model, inner_optimizer, is_compiled, sharding_of

BEGIN: Final = "set dampening=0, or record from its first step"
GIVE_SEED: Final = "or give the recorder a seed (`seed=1`)"


@dataclass(frozen=True)
class Blocker:
    """One reason why an audit will be inconclusive, and the line that mends it.

    `is_certain` means that no step can be replayed; otherwise the first step shows whether it matters.
    """

    what: str
    mends: str
    is_certain: bool = True

    def __str__(self) -> str:
        return f"{self.what}; {self.mends}"


def preflight(model: nn.Module, optimizer: Any, loader: Any = None) -> list[Blocker]:
    """Everything that can be seen now and keeps an audit from replaying a training; empty where nothing does.

    Args:
        model: in the mode it is trained in, wrapped as in the loop.
        optimizer: the optimizer of the loop, or a list of them.
        loader: the `DataLoader` of the loop, to find batches of another size.

    >>> tallystick.preflight(model, torch.optim.SGD(model.parameters(), fused=True))
    [Blocker(what='SGD with fused=True cannot be replayed', mends='set fused=False', is_certain=True)]
    """
    optimizers = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    inner = inner_model(model)
    found = [*_of_wrappers(model, inner), *(blocker for each in optimizers for blocker in _of_optimizer(inner, each))]
    return [*found, *_of_layers(inner), *(of_loader(loader) if describe_dropout(inner) else ())]


def reason_from(blockers: Iterable[Blocker], capture: str = "") -> str:
    """All blockers, and why the capture failed where none of them says it, as one line."""
    lines = [str(blocker) for blocker in blockers]
    drops = "random" in capture and any("dropout" in line for line in lines)
    is_said = not capture or drops or any(line.partition(" cannot")[0] in capture for line in lines)
    lines += [] if is_said else [capture]
    return lines[0] if len(lines) == 1 else " ".join(f"({number}) {line}." for number, line in enumerate(lines, 1))


def _of_wrappers(model: nn.Module, inner: nn.Module) -> Iterator[Blocker]:
    if found := sharding_of(inner):
        yield Blocker(f"{found}, and a record is of whole tensors", "train unsharded, in one process")
    distributed = torch.distributed
    count = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    if count > 1:
        yield Blocker(f"{count} processes average their gradients, and a graph holds the step of one", "train in one")
    if is_compiled(model) or any(is_compiled(module) for module in inner.modules()):
        yield Blocker("torch.compile rounds otherwise than single operators", "record the loop uncompiled")


def _of_optimizer(inner: nn.Module, given: Any) -> Iterator[Blocker]:
    try:
        optimizer = inner_optimizer(given)
        settings = dict(each for group in optimizer.param_groups for each in unsupported(optimizer, group))
        for setting, mends in settings.items():
            yield Blocker(f"{type(optimizer).__name__} with {setting} cannot be replayed", mends)
        if not settings:
            rules_of(optimizer)
            if begins_otherwise(optimizer):
                yield Blocker(f"{type(optimizer).__name__} with dampening goes on from earlier momentum", BEGIN)
        own = {id(value) for value in inner.parameters()}
        if any(id(value) not in own for group in optimizer.param_groups for value in group["params"]):
            yield Blocker(
                "the optimizer holds a parameter that is none of the model's", "record the model that has them all"
            )
    except UnavailableError as error:
        yield Blocker(str(error), "use one of them")


def _of_layers(inner: nn.Module) -> Iterator[Blocker]:
    if (drops := describe_dropout(inner)) and not dropout_is_known(inner):  # on a CPU it is, elsewhere nobody knows
        settings = [f"{name}=0" for name in config_that_drops(inner)]
        without = f"make the config with {', '.join(settings)}" if settings else "set its probability to 0 (p=0)"
        yield Blocker(drops, f"{without}, {GIVE_SEED}", is_certain=False)
    for name, module in inner.named_modules():
        is_normed = isinstance(module, _BatchNorm) and module.training and module.track_running_stats
        if is_normed and module.momentum is None:  # weighs batch number t by 1/t, which a graph holds as a constant
            yield Blocker(
                f"batch norm with momentum=None (layer {name or type(module).__name__}) averages over all batches, "
                "each with another factor",
                "give it a number, such as momentum=0.1",
            )
            break
    is_cuda = any(value.is_cuda for value in list(inner.parameters()))
    if is_cuda and not torch.are_deterministic_algorithms_enabled():
        yield Blocker(
            "kernels on CUDA may give other bits each time",
            "call torch.use_deterministic_algorithms(True)",
            is_certain=False,
        )


def of_loader(loader: Any) -> Iterator[Blocker]:
    """A last batch of another size, which a `DataLoader` gives unless it drops it.

    A loop that draws from a seed is watched in its first step alone, so its loss is known for batches of one shape.
    """
    sampler, rows = getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)
    size = getattr(sampler, "batch_size", None)
    if not size or getattr(sampler, "drop_last", True) or not isinstance(rows, Sized):
        return
    if rest := len(rows) % size:
        yield Blocker(
            f"the last batch of an epoch has {rest} rows and the others {size}: "
            "with dropout its step cannot be replayed",
            "set drop_last=True, or give the recorder `loss=` and `example=`",
            is_certain=False,
        )
