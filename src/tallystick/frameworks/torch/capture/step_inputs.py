"""An example of every tensor that a step reads; only shapes and dtypes matter.

Each example is a separate object, because tracing treats one object as one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from tallystick.commitments.mt19937 import STATE_SIDE
from tallystick.frameworks.torch.capture.step import Batch, TrainingStep
from tallystick.frameworks.torch.capture.step_names import batch_prefix, named_scalars
from tallystick.frameworks.torch.dtypes import DTYPES, spec_of
from tallystick.frameworks.torch.philox_operators import seed_tensor
from tallystick.frameworks.torch.state import live_tensors
from tallystick.transcripts.rule import SlotSpec
from tallystick.workloads.names import BATCH, GENERATOR, GENERATOR_MOVE, POSITION, SEED


@dataclass(frozen=True)
class StepInputs:
    """The examples, sorted by name; `unallocated` are slots that the optimizer allocates when it first needs them.

    `starts` are the numbers that fill slots before the first step, where they are not 0.
    """

    examples: Mapping[str, torch.Tensor]
    unallocated: frozenset[str]
    starts: Mapping[str, float]


def step_inputs(step: TrainingStep, batches: Sequence[Batch]) -> StepInputs:
    """The examples for `step` and micro-batches like these."""
    held = _state(step)
    slots = dict(_slots(step))
    unallocated = {name: _example(*found) for name, found in slots.items() if name not in held}
    examples = held | unallocated | _fed(step, batches)
    starts = {name: slot.start for name, (slot, _) in slots.items() if str(slot.start) != "0.0"}
    return StepInputs(dict(sorted(examples.items())), frozenset(unallocated), starts)


def _state(step: TrainingStep) -> dict[str, torch.Tensor]:
    live = live_tensors(step.model, step.optimizer)
    live |= {} if step.ema is None else step.ema.live(step.model)
    found = {name: torch.empty_like(value.detach()) for name, value in live.items()}
    if step.draws == "generator":
        found[GENERATOR] = torch.zeros(STATE_SIDE, dtype=torch.int64)
    return found | {POSITION: torch.zeros((), dtype=torch.int64)}


def _slots(step: TrainingStep) -> Iterator[tuple[str, tuple[SlotSpec, torch.Tensor]]]:
    """Each slot of every parameter, allocated or not, by name; those of a parameter without a gradient are not read."""
    parameters = {name: value.detach() for name, value in step.model.named_parameters()}
    for rule, names in zip(step.rules, step.groups, strict=True):
        for name in names:
            for slot, found in rule.slots(spec_of(parameters[name])).items():
                yield f"optimizer.{name}.{slot}", (found, parameters[name])


def _example(slot: SlotSpec, parameter: torch.Tensor) -> torch.Tensor:
    """An example of a slot; one of the parameter's form has its strides too, and a number lies on the CPU."""
    spec = slot.spec
    if spec == spec_of(parameter):
        return torch.empty_like(parameter)
    return torch.zeros(spec.shape, dtype=DTYPES[spec.dtype], device=parameter.device if spec.shape else "cpu")


def _fed(step: TrainingStep, batches: Sequence[Batch]) -> dict[str, torch.Tensor]:
    """The inputs that change at each step: batches, scalars of the schedule, seed."""
    found = {
        f"{batch_prefix(index, step.accumulation)}{name}": torch.empty_like(value)
        for index, batch in enumerate(batches)
        for name, value in batch.items()
    }
    scalars = named_scalars(step.rules, [0.0] * len(step.rules), 1)
    found |= {name: torch.zeros((), dtype=torch.float64) for name in scalars}
    if step.draws == "generator":
        found[BATCH + GENERATOR_MOVE] = torch.zeros(2, dtype=torch.int64)
    return found | ({SEED: seed_tensor(bytes(16))} if step.draws == "seed" else {})
