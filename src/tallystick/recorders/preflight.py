"""What keeps a training from being replayed: everything that can be seen before its first step, together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.updates import UNSUPPORTED, rule_of
from tallystick.frameworks.torch.wrappers import inner_model, inner_optimizer, is_compiled, sharding_of

DROPOUT_SETTINGS: Final = (
    "dropout",
    "dropout_p",
    "attention_dropout",
    "activation_dropout",
    "resid_pdrop",
    "attn_pdrop",
)
"""Attributes of layers that drop without a module of their own, as attention does."""


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

    >>> tallystick.preflight(model, torch.optim.AdamW(model.parameters(), fused=True))
    [Blocker(what='AdamW with fused=True cannot be replayed', mends='set fused=False', is_certain=True)]
    """
    optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    inner = inner_model(model)
    found = [*_of_wrappers(model, inner), *_of_optimizers(inner, optimizers), *_dropout(inner), *_numerics(inner)]
    return found + list(of_loader(loader))


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


def _of_optimizers(inner: nn.Module, optimizers: Sequence[Any]) -> Iterator[Blocker]:
    if len(optimizers) > 1:
        yield Blocker(
            f"{len(optimizers)} optimizers step in turn, and a graph holds one", "put all parameters into one"
        )
    for each in optimizers:
        try:
            yield from _of_optimizer(inner, inner_optimizer(each))
        except UnavailableError as error:
            yield Blocker(str(error), "use AdamW, Adam or SGD of torch.optim")


def _of_optimizer(inner: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Blocker]:
    name, settings = type(optimizer).__name__, dict[str, str]()
    for group in optimizer.param_groups:
        settings |= {each: f"set {each}=False" for each in UNSUPPORTED if group.get(each)}
        settings |= {"dampening": "set dampening=0"} if group.get("dampening") else {}
        settings |= {"a tensor as lr": "give a float"} if isinstance(group.get("lr"), torch.Tensor) else {}
    for setting, mends in settings.items():
        what = f"{setting}=True" if setting in UNSUPPORTED else setting
        yield Blocker(f"{name} with {what} cannot be replayed", mends)
    if not settings:
        rule_of(optimizer, optimizer.param_groups[0])
    own = {id(value) for value in inner.parameters()}
    if any(id(value) not in own for group in optimizer.param_groups for value in group["params"]):
        yield Blocker(
            "the optimizer holds a parameter that is none of the model's", "record the model that has them all"
        )


def _dropout(inner: nn.Module) -> Iterator[Blocker]:
    found = [name or type(module).__name__ for name, module in inner.named_modules() if _drops(module)]
    if found:
        settings = [f"{name}=0" for name in _config_that_drops(inner)]
        others = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield Blocker(
            f"dropout draws random numbers (layer {found[0]}{others})",
            f"make the config with {', '.join(settings)}" if settings else "set its probability to 0 (p=0)",
            is_certain=False,
        )


def _config_that_drops(inner: nn.Module) -> Iterator[str]:
    """The settings of a model of transformers that make it drop."""
    config: Any = getattr(inner, "config", None)
    for name, value in (config.to_dict() if hasattr(config, "to_dict") else {}).items():
        if "drop" in name and isinstance(value, float) and value > 0:
            yield name


def _drops(module: nn.Module) -> bool:
    if not module.training:
        return False
    if isinstance(module, _DropoutNd):
        return module.p > 0
    shares = (getattr(module, name, 0) for name in DROPOUT_SETTINGS)
    return any(isinstance(share, float) and share > 0 for share in shares)


def _numerics(inner: nn.Module) -> Iterator[Blocker]:
    parameters = list(inner.parameters())
    if any(value.is_cuda for value in parameters) and not torch.are_deterministic_algorithms_enabled():
        yield Blocker(
            "kernels on CUDA may give other bits each time",
            "call torch.use_deterministic_algorithms(True)",
            is_certain=False,
        )
    if any(value.dtype in {torch.bfloat16, torch.float16} for value in parameters if value.requires_grad):
        yield Blocker(
            "the optimizer's kernels round weights of 16 bits otherwise",
            "keep the weights in float32, and compute under torch.autocast",
            is_certain=False,
        )


def of_loader(loader: Any, mends: str = "set drop_last=True") -> Iterator[Blocker]:
    """A last batch of another size, which a `DataLoader` gives unless it drops it."""
    sampler, rows = getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)
    size = getattr(sampler, "batch_size", None)
    if not size or getattr(sampler, "drop_last", True) or not isinstance(rows, Sized):
        return
    if rest := len(rows) % size:
        yield Blocker(
            f"the last batch of an epoch has {rest} rows and the others {size}: its step cannot be replayed",
            mends,
            is_certain=False,
        )
