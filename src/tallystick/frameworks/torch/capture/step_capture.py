"""Captures a step as a graph: export, trace, lower, and compare with the eager step bit by bit."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tallystick.frameworks.torch.capture.captured_step import CapturedStep
from tallystick.frameworks.torch.capture.exported_calls import exported_calls
from tallystick.frameworks.torch.capture.faithful import SEED_OF_CHECK, check_bits
from tallystick.frameworks.torch.capture.lowering import lower
from tallystick.frameworks.torch.capture.step import Batch, TrainingStep
from tallystick.frameworks.torch.capture.step_inputs import StepInputs, step_inputs
from tallystick.frameworks.torch.capture.step_names import batch_prefix, role_of
from tallystick.frameworks.torch.capture.step_program import StepFunction
from tallystick.frameworks.torch.capture.step_tracing import Traced, traced
from tallystick.frameworks.torch.capture.trail import Trail
from tallystick.frameworks.torch.dtypes import spec_of
from tallystick.frameworks.torch.randomness import SEED, seed_tensor
from tallystick.graphs.graph import GraphForm, Input


def captured_step(step: TrainingStep, batch: Batch, trail: Trail) -> CapturedStep:
    """The graph of `step` for batches like this one; `trail` knows the modules of its nodes.

    Raises `UnavailableError` if the step cannot be captured, or if its graph does not give the eager step's bits.
    """
    inputs = step_inputs(step, batch)
    calls = exported_calls(step, batch, trail)
    program = StepFunction(step, calls, tuple(inputs.examples), inputs.unallocated, trail)
    found = traced(program, inputs.examples, trail)
    declared = _declared(inputs, found)
    named = zip(found.placeholders, inputs.examples, strict=True)
    lowered = lower(
        found.module.graph,
        {node.name: declared[name] for node, name in named if name in declared},
        {},
        found.outputs,
        attributes=found.attribute,
        place=trail.module_of,
        form=GraphForm.VERIFICATION,
    )
    captured = CapturedStep(lowered.graph, lowered.constants, step.rules, lowered.modules)
    _check(captured, step, batch, {name: inputs.examples[name] for name in declared})
    return captured


def _declared(inputs: StepInputs, found: Traced) -> dict[str, Input]:
    """The inputs of the graph: all except slots of parameters that get no gradient."""
    wanted = (name for name in inputs.examples if name not in inputs.unallocated or name in found.names)
    return {name: Input(name, role_of(name), spec_of(inputs.examples[name])) for name in wanted}


def _check(captured: CapturedStep, step: TrainingStep, batch: Batch, inputs: Mapping[str, torch.Tensor]) -> None:
    """Compare with the eager step; each micro-batch has the elements of `batch` in another order."""
    count = step.accumulation
    batches = [{name: v.roll(index, 0) if v.dim() else v for name, v in batch.items()} for index in range(count)]
    given = {name: torch.zeros_like(value) for name, value in inputs.items()}
    for index, each in enumerate(batches):
        given |= {batch_prefix(index, count) + name: value for name, value in each.items()}
    given |= {SEED: seed_tensor(SEED_OF_CHECK)} if step.seeded else {}
    check_bits(captured, step, batches, given)
