"""Experts of transformers whose rows are multiplied in groups: the operator that stands in for the kernel in a trace.

In an eager step, the kernel is `aten._grouped_mm`, and autograd calls it twice more. PyTorch traces it for BF16 alone,
so transformers puts an operator of its own in its place. Here that operator becomes `tally.grouped_mm`, which graphs
hold under the name of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from tallystick.errors import UnavailableError

EXPERTS_LOOP: Final = (
    "the program cannot be captured: which experts run, and on how many rows, depends on data; load the model with "
    "experts_implementation='grouped_mm' (or call model.set_experts_implementation('grouped_mm'))"
)


@torch.library.custom_op(
    "tally::grouped_mm", mutates_args=(), schema="(Tensor self, Tensor mat2, Tensor offs) -> Tensor"
)
def grouped_mm(self: torch.Tensor, mat2: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """The kernel of eager steps."""
    product: torch.Tensor = torch.ops.aten._grouped_mm.default(self, mat2, offs)
    return product


@grouped_mm.register_fake
def _fake(self: torch.Tensor, mat2: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    if mat2.dim() == 3:
        return self.new_empty((self.shape[0], mat2.shape[2]))
    return self.new_empty((offs.shape[0], self.shape[0], mat2.shape[1]))


def grouped_decompositions() -> dict[Any, Callable[..., Any]]:
    """The stand-ins of transformers by what an eager step runs; none where its experts are not loaded."""
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return {}
    library = torch.ops.transformers
    return {library.grouped_mm_fallback.default: _forward, library.grouped_mm_fallback_backward.default: _backward}


def _forward(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return torch.ops.tally.grouped_mm(input, weight, offs)  # type: ignore[no-any-return]


def _backward(
    input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad_output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As autograd differentiates the kernel: the gradient of a transposed weight is a transposed product."""
    kernel = torch.ops.tally.grouped_mm
    of_input = kernel(grad_output, weight.transpose(-2, -1), offs)
    if weight.stride(-1) == 1:
        return of_input, kernel(input.transpose(-2, -1), grad_output, offs)
    return of_input, kernel(grad_output.transpose(-2, -1), input, offs).transpose(-2, -1)


def check_no_loop(model: nn.Module) -> None:
    """Raise `UnavailableError` if a model of transformers runs its experts in a loop, each on the rows it was sent."""
    configs = (getattr(module, "config", None) for module in model.modules())
    has_experts = any(type(module).__name__.endswith("Experts") for module in model.modules())
    if has_experts and any(getattr(config, "_experts_implementation", None) == "eager" for config in configs):
        raise UnavailableError(EXPERTS_LOOP)
