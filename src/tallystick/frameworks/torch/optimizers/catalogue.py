"""All optimizers that can be captured; one more is a rule in `transcripts.optimizers`, a file here, and two rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Final

import torch
from pydantic import ValidationError

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.optimizers.known import Group, KnownOptimizer, Update
from tallystick.transcripts.rule import GroupRule

HOMES: Final[Mapping[str, str]] = {
    "lion_pytorch.lion_pytorch.Lion": "tallystick.frameworks.torch.optimizers.lion",
    "torch.optim.Adafactor": "tallystick.frameworks.torch.optimizers.adafactor",
    "torch.optim.Muon": "tallystick.frameworks.torch.optimizers.muon",
    "torch.optim.adadelta.Adadelta": "tallystick.frameworks.torch.optimizers.adadelta",
    "torch.optim.adagrad.Adagrad": "tallystick.frameworks.torch.optimizers.adagrad",
    "torch.optim.adam.Adam": "tallystick.frameworks.torch.optimizers.adam",
    "torch.optim.adamax.Adamax": "tallystick.frameworks.torch.optimizers.adamax",
    "torch.optim.adamw.AdamW": "tallystick.frameworks.torch.optimizers.adam",
    "torch.optim.nadam.NAdam": "tallystick.frameworks.torch.optimizers.nadam",
    "torch.optim.radam.RAdam": "tallystick.frameworks.torch.optimizers.radam",
    "torch.optim.rmsprop.RMSprop": "tallystick.frameworks.torch.optimizers.rmsprop",
    "torch.optim.sgd.SGD": "tallystick.frameworks.torch.optimizers.sgd",
    "transformers.optimization.Adafactor": "tallystick.frameworks.torch.optimizers.adafactor_transformers",
}
"""The module whose `KNOWN` is the optimizer of a class, by the full name of the class.

Another class under such a name is found out when the first steps are compared.
"""
OFF: Final = ("capturable", "differentiable")
"""Settings under which every optimizer of `torch.optim` computes otherwise."""


def rules_of(optimizer: torch.optim.Optimizer) -> tuple[GroupRule, ...]:
    """The rule of every parameter group, in order; raises `UnavailableError` if its arithmetic is not supported."""
    return tuple(rule for each in each_of(optimizer) for rule in _rules(each))


def _rules(optimizer: torch.optim.Optimizer) -> tuple[GroupRule, ...]:
    known, name = _known(optimizer), type(optimizer).__name__
    for group in optimizer.param_groups:
        for setting, _ in unsupported(optimizer, group):
            raise UnavailableError(f"{name} with {setting} cannot be captured")
    try:
        return tuple(known.rule(optimizer, group) for group in optimizer.param_groups)
    except ValidationError as error:
        from tallystick.documents.explained import explain

        raise UnavailableError(f"{name} cannot be captured: {explain(error)}") from None


def each_of(optimizer: torch.optim.Optimizer) -> Sequence[torch.optim.Optimizer]:
    """The optimizers of an `InTurn`, or the only one."""
    return getattr(optimizer, "optimizers", (optimizer,))


def updates_of(optimizer: torch.optim.Optimizer) -> tuple[Update, ...]:
    """The arithmetic of every parameter group, in order."""
    return tuple(_known(each).update for each in each_of(optimizer) for _ in each.param_groups)


def begins_otherwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer goes on from momentum, and only its very first step would be as a run takes it."""
    known = _known(optimizer)
    groups = [group for group in optimizer.param_groups if known.begins_otherwise(known.rule(optimizer, group))]
    return any(optimizer.state.get(each) for group in groups for each in group["params"])


def unsupported(optimizer: torch.optim.Optimizer, group: Group) -> Iterator[tuple[str, str]]:
    """The settings of a group whose arithmetic cannot be captured, each with what mends it."""
    known = _known(optimizer)
    for name in OFF:
        if group.get(name):
            yield f"{name}=True", f"set {name}=False"
    if isinstance(group.get("lr"), torch.Tensor) and not known.takes_tensor_rate:
        yield "a tensor as lr", "give a float"
    yield from known.refused(group)


def _known(optimizer: torch.optim.Optimizer) -> KnownOptimizer:
    kind = type(optimizer)
    home = HOMES.get(f"{kind.__module__}.{kind.__qualname__}")
    if home is None:
        names = ", ".join(sorted({name.rpartition(".")[2] for name in HOMES}))
        raise UnavailableError(f"{kind.__module__}.{kind.__qualname__} cannot be captured; these can: {names}")
    known: KnownOptimizer = import_module(home).KNOWN
    return known
