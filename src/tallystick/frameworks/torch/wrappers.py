"""Unwraps models and optimizers that libraries have wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.in_turn import InTurn

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
