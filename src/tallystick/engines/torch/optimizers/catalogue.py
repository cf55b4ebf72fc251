"""All optimizers that can be captured, and what capture needs of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeAlias

import torch
from pydantic import ValidationError

from tallystick.core.documents import explain
from tallystick.core.errors import UnavailableError
from tallystick.formats.optimizers import GroupRule

# What capture needs of an optimizer: how its settings are read, and its arithmetic for one parameter.
#
# The arithmetic writes nothing in place. Each operation is the one of the library's single-tensor code, in the same
# order, so the results have the same bits. Values that depend on the step number are 0-dimensional tensors. `addcmul`
# and `addcdiv` replace the addition of a multiple by a Python number: they round and fuse as `add` with `alpha` does.

Group: TypeAlias = Mapping[str, Any]
"""The settings of one parameter group of an optimizer."""
Tensors: TypeAlias = Mapping[str, torch.Tensor]
Updated: TypeAlias = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""The parameter and its slots after one step."""


@dataclass(frozen=True)
class Scalars:
    """The scalars that a rule names, 0-dimensional: `exact` in F64, `rounded` once to the parameter's dtype.

    `wide` ones are rounded once to the dtype that kernels compute in; it is another one for parameters of 16 bits.
    """

    exact: Tensors
    rounded: Tensors
    wide: Tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        """The rounded scalar: what an operator of the library makes of a Python number."""
        return self.rounded[name]


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which kernels of PyTorch compute on numbers of `dtype`, and round once at their end."""
    return torch.float32 if dtype in {torch.bfloat16, torch.float16} else dtype


def wide(value: torch.Tensor) -> torch.Tensor:
    """A tensor in the dtype that kernels compute in."""
    return value.to(arithmetic_dtype(value.dtype))


Update: TypeAlias = Callable[[Any, torch.Tensor, torch.Tensor, Tensors, Scalars], Updated]
"""Takes the rule, the parameter (any shape, a float dtype), its gradient of the same form, its slots, the scalars."""


@dataclass(frozen=True)
class KnownOptimizer:
    """An optimizer whose steps can be captured.

    `rule` reads the settings of a group; `refused` names those whose arithmetic is another one, each with its remedy.
    `begins_otherwise` says of a rule that the first step of the optimizer is another one, and no slot counts steps.
    """

    rule: Callable[[torch.optim.Optimizer, Group], GroupRule]
    update: Update
    refused: Callable[[Group], Iterable[tuple[str, str]]] = lambda _: ()
    takes_tensor_rate: bool = False
    begins_otherwise: Callable[[Any], bool] = lambda _: False


def picked(group: Group, *names: str) -> dict[str, Any]:
    """Some settings of a group, by name."""
    return {name: group[name] for name in names}


def pair(numbers: Iterable[Any]) -> tuple[float, float]:
    """Two numbers of Python, such as betas."""
    first, second = numbers
    return float(first), float(second)


def refuse_fused(group: Group) -> Iterable[tuple[str, str]]:
    """The fused kernel of an optimizer, which rounds otherwise."""
    return [("fused=True", "set fused=False")] if group.get("fused") else []


def decayed(rule: GroupRule, parameter: torch.Tensor, gradient: torch.Tensor, maximize: bool) -> torch.Tensor:
    """The gradient of what is minimised, with the weight decay of L2."""
    gradient = -gradient if maximize else gradient
    return gradient.add(parameter, alpha=rule.weight_decay) if rule.weight_decay else gradient


def decayed_either_way(
    rule: Any, parameter: torch.Tensor, gradient: torch.Tensor, scalars: Scalars
) -> tuple[torch.Tensor, torch.Tensor]:
    """The parameter and the gradient of what is minimised; `rule.decoupled` says which of them has the weight decay."""
    if not rule.decoupled:
        return parameter, decayed(rule, parameter, gradient, rule.maximize)
    gradient = -gradient if rule.maximize else gradient
    return parameter * scalars["decay"] if rule.weight_decay else parameter, gradient


# All optimizers that can be captured; one more is a rule in `transcripts.optimizers`, a file here, and two rows.

HOMES: Final[Mapping[str, str]] = {
    "lion_pytorch.lion_pytorch.Lion": "tallystick.engines.torch.optimizers.first_moments:LION",
    "torch.optim.Adafactor": "tallystick.engines.torch.optimizers.second_moments:ADAFACTOR",
    "torch.optim.Muon": "tallystick.engines.torch.optimizers.first_moments:MUON",
    "torch.optim.adadelta.Adadelta": "tallystick.engines.torch.optimizers.second_moments:ADADELTA",
    "torch.optim.adagrad.Adagrad": "tallystick.engines.torch.optimizers.second_moments:ADAGRAD",
    "torch.optim.adam.Adam": "tallystick.engines.torch.optimizers.second_moments:ADAM",
    "torch.optim.adamax.Adamax": "tallystick.engines.torch.optimizers.second_moments:ADAMAX",
    "torch.optim.adamw.AdamW": "tallystick.engines.torch.optimizers.second_moments:ADAM",
    "torch.optim.nadam.NAdam": "tallystick.engines.torch.optimizers.second_moments:NADAM",
    "torch.optim.radam.RAdam": "tallystick.engines.torch.optimizers.second_moments:RADAM",
    "torch.optim.rmsprop.RMSprop": "tallystick.engines.torch.optimizers.second_moments:RMSPROP",
    "torch.optim.sgd.SGD": "tallystick.engines.torch.optimizers.first_moments:SGD",
    "transformers.optimization.Adafactor": "tallystick.engines.torch.optimizers.second_moments:ADAFACTOR_TRANSFORMERS",
}
"""Where the optimizer of a class is known, by the full name of the class.

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
    module, _, name = home.partition(":")
    known: KnownOptimizer = getattr(import_module(module), name)
    return known
