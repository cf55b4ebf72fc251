"""Captures forward, backward and optimizer of one training step as one functional graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import torch
from torch import fx, nn
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.tensors import TensorSpec
from tallystick.engines.torch.capture.export import Replaying, exported_calls, grouped_decompositions, tracing_errors
from tallystick.engines.torch.capture.lowering import lower
from tallystick.engines.torch.capture.module_trail import CLIPPING, UPDATE, ModuleTrail
from tallystick.engines.torch.capture.step import (
    NO_EDITS,
    Batch,
    CapturedStep,
    Draws,
    Edits,
    Loss,
    Precision,
    Reduction,
    TrainingStep,
    batch_of,
    check_bits,
    group_suffix,
    is_state,
    role_of,
    step_inputs,
)
from tallystick.engines.torch.optimizers import Scalars, Tensors, arithmetic_dtype, updates_of
from tallystick.engines.torch.randomness import (
    ExplicitRandomness,
    GeneratorRandomness,
    explicit_randomness,
    mt19937_move,
    native_mask,
)
from tallystick.engines.torch.tensors import spec_of, to_tensor
from tallystick.engines.torch.wrappers import Ema
from tallystick.formats.optimizers import schedule_scalars
from tallystick.programs.graph import GraphForm, Input
from tallystick.programs.step_names import (
    BATCH,
    GENERATOR,
    GENERATOR_MOVE,
    POSITION,
    SEED,
    UPDATED,
    WEIGHTS,
    full_masks,
)

# The step as a function from named tensors to named tensors, which is traced.
#
# It differentiates the exported model with `torch.autograd.grad`, which sums in the order of `backward()`, and then
# applies the optimizer's arithmetic.


@dataclass(frozen=True)
class StepFunction:
    """One step, called with its tensors in the order of `names`; `unallocated` are slots that may stay unused."""

    step: TrainingStep
    calls: Sequence[nn.Module]
    names: Sequence[str]
    unallocated: frozenset[str]
    trail: ModuleTrail

    def __call__(self, *values: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs of one step by name."""
        tensors = dict(zip(self.names, values, strict=True))
        with self._drawing(tensors) as stream:
            gradients, buffers, seen = self._gradients(tensors)
        self.trail.enter(CLIPPING)
        with torch.no_grad():
            norm, gradients = _clipped(gradients, self.step.clip_norm)
            gradients |= self.step.edits.edited(gradients, tensors)
            kept = {name: value for name, value in tensors.items() if is_state(name) and name not in self.unallocated}
            kept |= buffers | self._updated(tensors, gradients) | {POSITION: tensors[POSITION] + 1}
            kept |= {GENERATOR: stream.place} if self.step.draws == "generator" and stream is not None else {}
            edited = self.step.edits.edited_weights(gradients, kept)
            updated = {UPDATED + name.removeprefix(WEIGHTS): kept[name] for name in edited}
            kept |= edited
            kept |= {} if self.step.ema is None else self.step.ema.updated(kept)
        shown = {f"gradients.{name}": value for name, value in gradients.items()}
        return {**kept, **updated, **shown, **seen, "gradient_norm": norm}

    def _drawing(self, tensors: Tensors) -> AbstractContextManager[ExplicitRandomness | None]:
        if self.step.draws == "seed":
            return explicit_randomness(tensors[SEED])
        if self.step.draws == "generator":
            return GeneratorRandomness(mt19937_move(tensors[GENERATOR], tensors[BATCH + GENERATOR_MOVE]))
        return nullcontext()

    def _gradients(self, tensors: Tensors) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Tensors]:
        """Gradients and buffers after all micro-batches, and the observed values."""
        model, count = self.step.model, self.step.accumulation
        leaves = {name: tensors[f"weights.{name}"].detach() for name, _ in model.named_parameters()}
        trained = {name: leaves[name].requires_grad_() for name in self.step.trained}
        buffers = {name: tensors[f"buffers.{name}"].clone() for name, _ in model.named_buffers()}
        replaying = Replaying(model, itertools.cycle(self.calls), leaves | buffers, self.trail)
        total: dict[str, torch.Tensor] = {}
        losses, watched = [], None
        for index in range(count):
            with torch.enable_grad(), self.step.precision():
                loss, watched = self.step.objective(replaying, batch_of(tensors, index, count))
            share = self.step.share(loss)
            self.trail.follow(share)
            _accumulate(total, trained, share)
            losses.append(loss.detach())
        state = {f"buffers.{name}": value for name, value in buffers.items()}
        return total, state, {"loss": self.step.reduced(losses)} | _moments(watched)

    def _updated(self, tensors: Tensors, gradients: Tensors) -> dict[str, torch.Tensor]:
        """The weights with a gradient, and their slots, after the optimizer's update."""
        changed: dict[str, torch.Tensor] = {}
        rules, groups = self.step.rules, self.step.groups
        updates = updates_of(self.step.optimizer)
        for index, (rule, names, update) in enumerate(zip(rules, groups, updates, strict=True)):
            suffix = group_suffix(index, len(rules))
            exact = {name: tensors[f"schedule.{name}{suffix}"] for name in schedule_scalars(rule, 0.0, 1)}
            rounded = cache(partial(_rounded, exact))  # once to each dtype
            for name in (name for name in names if name in gradients):
                self.trail.enter(UPDATE + name)
                weight = tensors[f"weights.{name}"]
                slots = {slot: tensors[f"optimizer.{name}.{slot}"] for slot in rule.slots(spec_of(weight))}
                scalars = Scalars(exact, rounded(weight.dtype), rounded(arithmetic_dtype(weight.dtype)))
                moved, kept = update(rule, weight, gradients[name], slots, scalars)
                changed[f"weights.{name}"] = moved
                changed |= {f"optimizer.{name}.{slot}": value for slot, value in kept.items()}
        return changed


def _rounded(scalars: Tensors, dtype: torch.dtype) -> Tensors:
    return {name: value.to(dtype) for name, value in scalars.items()}


def _accumulate(total: dict[str, torch.Tensor], trained: Tensors, loss: torch.Tensor) -> None:
    """Add the gradients of one backward pass, each with the strides of its parameter, as `backward()` stores them."""
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
        if gradient is not None:
            same = gradient.stride() == parameter.stride()
            laid = gradient if same else gradient.clone(memory_format=torch.contiguous_format)
            total[name] = total[name] + laid if name in total else laid


def _clipped(gradients: Tensors, clip_norm: float | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """As `torch.nn.utils.clip_grad_norm_`, gradient by gradient."""
    norm = torch.nn.utils.get_total_norm(list(gradients.values()), foreach=False)
    if clip_norm is None:
        return norm, dict(gradients)
    share = torch.clamp(clip_norm / (norm + 1e-6), max=1.0)
    return norm, {name: value * share for name, value in gradients.items()}


def _moments(watched: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Mean and root mean square in float64, as the trainer records them."""
    if watched is None:
        return {}
    values = watched.detach().double()
    return {"activation.mean": values.mean(), "activation.rms": values.square().mean().sqrt()}


# Traces a step with `make_fx` into one flat program that writes nothing in place.

FAKE: Final[Mapping[str, Any]] = {"tracing_mode": "fake", "_allow_non_fake_inputs": True}
"""Tensors that the loss brings along, as weights of classes, are constants of the program."""


def traced(
    program: Callable[..., dict[str, torch.Tensor]],
    inputs: Mapping[str, torch.Tensor],
    trail: ModuleTrail,
    stand_ins: Mapping[Any, Callable[..., Any]],
) -> tuple[fx.GraphModule, list[tuple[str, fx.Node]]]:
    """The program for inputs like these, and its outputs by name; raises `UnavailableError` for what cannot be traced.

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
            module = make_fx(functional, **FAKE)(*inputs.values())
    results: Any = module.graph.output_node().args[0]
    return module, list(zip(names, results, strict=True))


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


# A step as a graph: export, trace, lower, and compare with the eager step bit by bit. Replaying the graph with the
# kernels of the same stack gives the bits of the native loop.

GROUPED: Final = "transformers.grouped_mm_fallback"


def captured_step(step: TrainingStep, batches: Sequence[Batch], trail: ModuleTrail) -> CapturedStep:
    """The graph of `step` for micro-batches like these; `trail` knows the modules of its nodes.

    Raises `UnavailableError` if the step cannot be captured, or if its graph does not give the eager step's bits.
    """
    if step.draws == "generator" and native_mask() is None:
        raise UnavailableError("what dropout draws on this processor is not known; give the recorder a seed (`seed=1`)")
    examples, unallocated, starts = step_inputs(step, batches)
    are_alike = all(_kind(batch) == _kind(batches[0]) for batch in batches)
    exported = [exported_calls(step, batch, trail) for batch in (batches[:1] if are_alike else batches)]
    calls = [call for of_batch, _ in exported for call in of_batch]
    program = StepFunction(step, calls, tuple(examples), unallocated, trail)
    module, outputs = traced(program, examples, trail, _stand_ins(calls))
    placeholders = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    # slots of parameters that get no gradient are no inputs
    read = {name: value for name, value in examples.items() if name not in unallocated or name in dict(outputs)}
    inputs = {name: Input(name, role_of(name), spec_of(value)) for name, value in read.items()}
    named = {node: inputs[name] for node, name in zip(placeholders, examples, strict=True) if name in inputs}
    graph, constants, modules = lower(module, named, {}, outputs, trail.module_of, GraphForm.VERIFICATION)
    reads_masks = any(are_decided for _, are_decided in exported)
    captured = CapturedStep(graph, constants, step.rules, modules, reads_masks, starts)
    # each micro-batch with its elements in another order, so that one example does not stand for all of them
    others = [
        {name: value.roll(index, 0) if value.dim() else value for name, value in batch.items()}
        for index, batch in enumerate(batches)
    ]
    check_bits(captured, step, others if are_alike else batches, read)
    return captured


def _stand_ins(calls: Sequence[nn.Module]) -> Mapping[Any, Callable[..., Any]]:
    """Those of experts whose rows are multiplied in groups, where there are any."""
    graphs = (module.graph for call in calls for module in call.modules() if isinstance(module, fx.GraphModule))
    has_groups = any(str(node.target).startswith(GROUPED) for graph in graphs for node in graph.nodes)
    return grouped_decompositions() if has_groups else {}


def _kind(batch: Batch) -> tuple[dict[str, TensorSpec], frozenset[str]]:
    """What decides which program a micro-batch is computed with."""
    specs = {name: spec_of(value) for name, value in batch.items()}
    return specs, full_masks({name: to_tensor(value) for name, value in batch.items()})


def capture_training_step(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    batch: Batch | Sequence[Batch],
    *,
    clip_norm: float | None = None,
    accumulation: int = 1,
    draws: Draws = "nothing",
    precision: Precision = nullcontext,
    reduction: Reduction = "mean",
    ema: Ema | None = None,
    edits: Edits = NO_EDITS,
) -> CapturedStep:
    """One step of `model` as a graph: `loss(model, batch)`, its gradients, clipping, the optimizer.

    Inputs are the state by its usual names, `inputs.<name>` (`inputs.<k>.<name>` for micro-batch k of several) and
    `schedule.<name>`. Outputs are the state, `loss`, `gradient_norm`, and `gradients.<parameter>` as the optimizer
    receives them. A parameter without a gradient is skipped, as in `torch.optim`.

    Args:
        model: in training mode; it is neither changed nor moved.
        loss: calls the model it is given on a batch, and returns one number.
        optimizer: AdamW, Adam or SGD over parameters of `model`.
        batch: example tensors by name; only shapes and dtypes matter. A list has an example for each micro-batch, and
            one example stands for all of them.
        clip_norm: the limit for `clip_grad_norm_` before the optimizer's step.
        accumulation: the number of micro-batches.
        draws: "seed" if dropout draws from the input `rng.seed`, see `explicit_randomness`; "generator" if it draws as
            PyTorch does on a CPU, from the state `position.generator`.
        precision: returns the context of the forward pass, for example `torch.autocast`; the model itself sets none.
        reduction: with "mean", the loss of a micro-batch is divided by their number; with "sum", it is a share already.
        ema: averages of the weights that the loop keeps: the state then holds them too.
        edits: what the loop writes into gradients or weights besides.

    Raises:
        UnavailableError: something in the step cannot be captured, and the line names the operator or the control flow;
            or the graph does not give the bits of the eager step on `batch`.
        UsageError: `batch` is not a mapping from names to tensors.
    """

    def objective(called: Any, examples: Batch) -> tuple[torch.Tensor, None]:
        return loss(called, examples), None

    step = TrainingStep(model, optimizer, objective, clip_norm, accumulation, draws, precision, reduction, ema, edits)
    given = [batch] if isinstance(batch, Mapping) else list(batch)
    tensors = [value for each in given if isinstance(each, Mapping) for value in each.values()]
    if not given or not all(isinstance(each, Mapping) for each in given) or not all(map(torch.is_tensor, tensors)):
        raise UsageError('a batch is a mapping from names to tensors, such as {"x": x, "y": y}')
    if len(given) not in {1, accumulation}:
        raise UsageError(f"{len(given)} examples are given for {accumulation} micro-batches")
    examples = [dict(each) for each in (given if len(given) == accumulation else given * accumulation)]
    return captured_step(step, examples, ModuleTrail())
