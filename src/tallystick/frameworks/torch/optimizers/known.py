"""What capture needs of an optimizer: how its settings are read, and its arithmetic for one parameter.

The arithmetic writes nothing in place. Each operation is the one of the library's single-tensor code, in the same
order, so the results have the same bits. Values that depend on the step number are 0-dimensional tensors. `addcmul` and
`addcdiv` replace the addition of a multiple by a Python number: they round and fuse as `add` with `alpha` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tallystick.transcripts.rule import GroupRule

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
