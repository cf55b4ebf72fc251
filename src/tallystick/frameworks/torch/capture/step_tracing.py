"""Traces a step with `make_fx` into one flat program that writes nothing in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.export import tracing_errors
from tallystick.frameworks.torch.capture.trail import Trail

Program = Callable[..., dict[str, torch.Tensor]]

FAKE: Final[Mapping[str, Any]] = {"tracing_mode": "fake", "_allow_non_fake_inputs": True}
"""Tensors that the loss brings along, as weights of classes, are constants of the program."""


@dataclass(frozen=True)
class Traced:
    """A traced program, and the names of its outputs in their order."""

    module: fx.GraphModule
    names: tuple[str, ...]

    @property
    def placeholders(self) -> list[fx.Node]:
        """The nodes of the inputs, in order."""
        return [node for node in self.module.graph.nodes if node.op == "placeholder"]

    @property
    def outputs(self) -> list[tuple[str, fx.Node]]:
        """The nodes of the outputs by name."""
        results = self.module.graph.output_node().args[0]
        return list(zip(self.names, results, strict=True))  # type: ignore[arg-type]

    def attribute(self, name: str) -> torch.Tensor:
        """A tensor of the program by its dotted name; raises `UnavailableError` for anything else."""
        value: Any = self.module
        for part in name.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise UnavailableError(f"{name} cannot be captured: it is a part of the program, and no tensor")
        return value


def traced(
    program: Program, inputs: Mapping[str, torch.Tensor], trail: Trail, stand_ins: Mapping[Any, Callable[..., Any]]
) -> Traced:
    """The program for inputs like these; raises `UnavailableError` for what cannot be traced.

    `stand_ins` are operators that a library calls only where it is traced, by what an eager step runs.

    It traces twice: first to differentiate, then to remove mutations. `functionalize` refuses `requires_grad_`.
    """
    names: list[str] = []

    def step(*values: torch.Tensor) -> list[torch.Tensor]:
        results = program(*values)
        names[:] = sorted(results)
        return [results[name] for name in names]

    with tracing_errors(), trail.kept():
        differentiated = make_fx(step, DECLARED | dict(stand_ins), **FAKE)(*inputs.values())
        trail.mark_step(differentiated)
        with torch.no_grad():
            functional = functionalize(differentiated, remove="mutations")
            return Traced(make_fx(functional, **FAKE)(*inputs.values()), tuple(names))


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm through the overload that declares that it writes into the running statistics."""
    if not training or mean is None or variance is None:
        return NotImplemented
    return torch.ops.aten._native_batch_norm_legit.default(x, weight, bias, mean, variance, training, momentum, eps)


DECLARED: Final[dict[Any, Callable[..., Any]]] = {torch.ops.aten.native_batch_norm.default: _batch_norm}
"""Replacements for operators whose schema does not declare that they write in place."""
