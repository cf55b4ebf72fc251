"""A captured training step: its graph, the bytes of its constants, and the inputs that each step needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from tallystick.errors import UsageError
from tallystick.frameworks.torch.capture.step_names import named_scalars
from tallystick.frameworks.torch.dtypes import DTYPES
from tallystick.frameworks.torch.state import live_tensors
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.graphs.graph import Graph
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.rule import GroupRule

if TYPE_CHECKING:
    from tallystick.graphs.modules import ModulePaths


@dataclass(frozen=True)
class CapturedStep:
    """The graph of a step, the bytes of its constants, the rule of each parameter group, and the modules of nodes.

    `modules` says where a node came from, by its number: a module (`model.layers.0.mlp`), its gradient (`backward of
    …`), `loss`, `gradient norm`, or the `update of` a parameter. It is no part of the graph.
    """

    graph: Graph
    constants: Mapping[str, Tensor]
    rules: tuple[GroupRule, ...]
    modules: ModulePaths = field(default_factory=dict)
    reads_masks: bool = False
    """Whether the graph holds for batches only whose masks are as full as those of the example (`workloads.masks`)."""
    starts: Mapping[str, float] = field(default_factory=dict)
    """The numbers that fill slots of the optimizer before the first step, where they are not 0."""

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the tensors that one step passes to the next."""
        inputs = {value.name for value in self.graph.inputs}
        return tuple(output.name for output in self.graph.outputs if output.name in inputs)

    def state_of(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """The state to continue from: copies of the live tensors, and slots that are not allocated yet as they start.

        The position, which only counts steps, is 0.
        """
        live = live_tensors(model, optimizer)
        return self.empty_slots() | {name: to_tensor(live[name]).copy() for name in self.state if name in live}

    def empty_slots(self) -> dict[str, Tensor]:
        """The optimizer's slots and the position before the first step: the state without the model."""
        specs = {value.name: value.spec for value in self.graph.inputs}
        names = [name for name in self.state if name.startswith(("optimizer.", "position."))]
        return {name: self._empty(name, specs[name]) for name in names}

    def _empty(self, name: str, spec: TensorSpec) -> Tensor:
        if name not in self.starts:
            return Tensor(spec.dtype, spec.shape, bytes(spec.nbytes))
        return to_tensor(torch.full(spec.shape, self.starts[name], dtype=DTYPES[spec.dtype]))

    def schedule(self, step: int, *learning_rates: float) -> dict[str, Tensor]:
        """The scalars of step `step` (1-based) by their names in the graph; one learning rate per parameter group.

        Raises `UsageError` for a wrong number of learning rates, and for a step before the first.
        """
        if len(learning_rates) != len(self.rules):
            raise UsageError(f"{len(self.rules)} learning rates are needed, one for each group of parameters")
        scalars = named_scalars(self.rules, learning_rates, step)
        return {name: Tensor.of(np.asarray(value, np.float64)) for name, value in scalars.items()}
