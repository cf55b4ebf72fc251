"""Captures a step as a graph: export, trace, lower, and compare with the eager step bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx, nn

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.captured_step import CapturedStep
from tallystick.frameworks.torch.capture.exported_calls import exported_calls
from tallystick.frameworks.torch.capture.faithful import check_bits, drawn_from
from tallystick.frameworks.torch.capture.lowering import lower
from tallystick.frameworks.torch.capture.step import Batch, TrainingStep
from tallystick.frameworks.torch.capture.step_inputs import StepInputs, step_inputs
from tallystick.frameworks.torch.capture.step_names import batch_prefix, is_state, role_of
from tallystick.frameworks.torch.capture.step_program import StepFunction
from tallystick.frameworks.torch.capture.step_tracing import Traced, traced
from tallystick.frameworks.torch.capture.trail import Trail
from tallystick.frameworks.torch.dtypes import spec_of
from tallystick.frameworks.torch.generator_operators import native_mask
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.graphs.graph import GraphForm, Input
from tallystick.tensors.spec import TensorSpec
from tallystick.workloads.masks import full_masks

GROUPED: Final = "transformers.grouped_mm_fallback"


def captured_step(step: TrainingStep, batches: Sequence[Batch], trail: Trail) -> CapturedStep:
    """The graph of `step` for micro-batches like these; `trail` knows the modules of its nodes.

    Raises `UnavailableError` if the step cannot be captured, or if its graph does not give the eager step's bits.
    """
    if step.draws == "generator" and native_mask() is None:
        raise UnavailableError("what dropout draws on this processor is not known; give the recorder a seed (`seed=1`)")
    inputs = step_inputs(step, batches)
    are_alike = all(_kind(batch) == _kind(batches[0]) for batch in batches)
    exported = [exported_calls(step, batch, trail) for batch in (batches[:1] if are_alike else batches)]
    calls = [call for each in exported for call in each.calls]
    program = StepFunction(step, calls, tuple(inputs.examples), inputs.unallocated, trail)
    found = traced(program, inputs.examples, trail, _stand_ins(calls))
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
    reads_masks = any(each.reads_masks for each in exported)
    captured = CapturedStep(
        lowered.graph, lowered.constants, step.rules, lowered.modules, reads_masks, starts=inputs.starts
    )
    _check(
        captured, step, _shuffled(batches) if are_alike else batches, {name: inputs.examples[name] for name in declared}
    )
    return captured


def _stand_ins(calls: Sequence[nn.Module]) -> Mapping[Any, Callable[..., Any]]:
    """Those of experts whose rows are multiplied in groups, where there are any."""
    graphs = (module.graph for call in calls for module in call.modules() if isinstance(module, fx.GraphModule))
    if not any(str(node.target).startswith(GROUPED) for graph in graphs for node in graph.nodes):
        return {}
    from tallystick.frameworks.torch.capture.grouped_experts import grouped_decompositions

    return grouped_decompositions()


def _declared(inputs: StepInputs, found: Traced) -> dict[str, Input]:
    """The inputs of the graph: all except slots of parameters that get no gradient."""
    wanted = (name for name in inputs.examples if name not in inputs.unallocated or name in found.names)
    return {name: Input(name, role_of(name), spec_of(inputs.examples[name])) for name in wanted}


def _kind(batch: Batch) -> tuple[dict[str, TensorSpec], frozenset[str]]:
    """What decides which program a micro-batch is computed with."""
    specs = {name: spec_of(value) for name, value in batch.items()}
    return specs, full_masks({name: to_tensor(value) for name, value in batch.items()})


def _shuffled(batches: Sequence[Batch]) -> list[Batch]:
    """Each micro-batch with its elements in another order."""
    return [
        {name: value.roll(index, 0) if value.dim() else value for name, value in batch.items()}
        for index, batch in enumerate(batches)
    ]


def _check(
    captured: CapturedStep, step: TrainingStep, batches: Sequence[Batch], inputs: Mapping[str, torch.Tensor]
) -> None:
    """Compare with the eager step."""
    given = {name: torch.zeros_like(value) for name, value in inputs.items() if not is_state(name)}
    for index, each in enumerate(batches):
        given |= {batch_prefix(index, step.accumulation) + name: value for name, value in each.items()}
    given |= drawn_from(step)
    check_bits(captured, step, batches, given)
