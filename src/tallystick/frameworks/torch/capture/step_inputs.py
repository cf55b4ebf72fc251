"""An example of every tensor that a step reads; only shapes and dtypes matter.

Each example is a separate object, because tracing treats one object as one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tallystick.frameworks.torch.capture.step import Batch, TrainingStep
from tallystick.frameworks.torch.capture.step_names import batch_prefix, named_scalars
from tallystick.frameworks.torch.randomness import SEED, seed_tensor
from tallystick.frameworks.torch.state import live_tensors
from tallystick.workloads.names import POSITION


@dataclass(frozen=True)
class StepInputs:
    """The examples, sorted by name; `unallocated` are slots that the optimizer allocates when it first needs them."""

    examples: Mapping[str, torch.Tensor]
    unallocated: frozenset[str]


def step_inputs(step: TrainingStep, batch: Batch) -> StepInputs:
    """The examples for `step` and batches like this one."""
    held = _state(step)
    unallocated = {name: value for name, value in _slots(step).items() if name not in held}
    examples = held | unallocated | _fed(step, batch)
    return StepInputs(dict(sorted(examples.items())), frozenset(unallocated))


def _state(step: TrainingStep) -> dict[str, torch.Tensor]:
    live = live_tensors(step.model, step.optimizer)
    found = {name: torch.empty_like(value.detach()) for name, value in live.items()}
    return found | {POSITION: torch.zeros((), dtype=torch.int64)}


def _slots(step: TrainingStep) -> dict[str, torch.Tensor]:
    """The slots of every parameter, allocated or not; those of a parameter without a gradient are never read."""
    parameters = dict(step.model.named_parameters())
    return {
        f"optimizer.{name}.{slot}": torch.zeros(()) if slot == "step" else torch.empty_like(parameters[name].detach())
        for rule, names in zip(step.rules, step.groups, strict=True)
        for name in names
        for slot in rule.slots
    }


def _fed(step: TrainingStep, batch: Batch) -> dict[str, torch.Tensor]:
    """The inputs that change at each step: batches, scalars of the schedule, seed."""
    prefixes = [batch_prefix(index, step.accumulation) for index in range(step.accumulation)]
    found = {f"{prefix}{name}": torch.empty_like(value) for prefix in prefixes for name, value in batch.items()}
    scalars = named_scalars(step.rules, [0.0] * len(step.rules), 1)
    found |= {name: torch.zeros((), dtype=torch.float64) for name in scalars}
    return found | ({SEED: seed_tensor(bytes(16))} if step.seeded else {})
