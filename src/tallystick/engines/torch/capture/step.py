"""A training step before and after capture: parts, inputs, names and edits; and whether its bits are the eager ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.optimizers import rules_of
from tallystick.engines.torch.randomness import explicit_randomness, recomputed, seed_tensor
from tallystick.engines.torch.tensors import DTYPES, live_tensors, spec_of, to_tensor
from tallystick.engines.torch.wrappers import Ema
from tallystick.formats.optimizers import GroupRule, schedule_scalars
from tallystick.programs.files import ModulePaths
from tallystick.programs.graph import Graph, Role
from tallystick.programs.random_words import GOES_ON, STATE_SIDE, seeded
from tallystick.programs.step_names import BATCH, GENERATOR, GENERATOR_MOVE, POSITION, SEED, STATE_PREFIXES

# What a step writes into gradients before the optimizer, and into weights after it, beside the optimizer's update.

Tensors: TypeAlias = Mapping[str, torch.Tensor]
Edit: TypeAlias = Callable[[Tensors], dict[str, torch.Tensor]]
"""Takes the tensors of a step by name, and returns those that it changes; the ones that it is given stay as they are.

Names are those of a state, and `gradients.<parameter>`.
"""
GRADIENTS: Final = "gradients."


@dataclass(frozen=True)
class Edits:
    """The edits of gradients and of weights; `None` for nothing.

    The counts say how often each tensor is written to, by PyTorch's version counters. `reads_back` means that the loop
    reads numbers from tensors meanwhile: they are constants of the edits.
    """

    gradients: Edit | None = None
    weights: Edit | None = None
    gradient_writes: Mapping[str, int] = field(default_factory=dict)
    weight_writes: Mapping[str, int] = field(default_factory=dict)
    reads_back: bool = False
    default_writes: int = 0
    """How often a gradient is written to that has no count."""

    def edited(self, gradients: Tensors, state: Tensors) -> dict[str, torch.Tensor]:
        """The gradients that are changed, as the optimizer receives them."""
        if self.gradients is None:
            return {}
        results = self.gradients({**state, **_as_named(gradients)})
        return {name.removeprefix(GRADIENTS): value for name, value in results.items()}

    def edited_weights(self, gradients: Tensors, state: Tensors) -> dict[str, torch.Tensor]:
        """The weights that are changed after the optimizer's step, by their names in the state."""
        return {} if self.weights is None else self.weights({**state, **_as_named(gradients)})


def _as_named(gradients: Tensors) -> dict[str, torch.Tensor]:
    return {f"{GRADIENTS}{name}": value for name, value in gradients.items()}


NO_EDITS: Final = Edits()


@dataclass(frozen=True)
class ClippedValues:
    """Every gradient clipped to [-limit, limit], as by `clip_grad_value_`."""

    limit: float

    def __call__(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """The clipped gradients."""
        gradients = {name: value for name, value in tensors.items() if name.startswith(GRADIENTS)}
        return {name: value.clamp_min(-self.limit).clamp_max(self.limit) for name, value in gradients.items()}


# The parts of a training step before capture: model, loss, optimizer, and settings.

Batch: TypeAlias = Mapping[str, torch.Tensor]
Loss: TypeAlias = Callable[[Any, Batch], torch.Tensor]
"""Takes the model, or a stand-in that is called like it, and a batch; returns a scalar."""
Objective: TypeAlias = Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor | None]]
"""Returns a loss, and a tensor to observe if there is one."""
Reduction: TypeAlias = Literal["mean", "sum"]
"""How the losses of micro-batches make the loss of a step: with "sum", each is already its share of it."""
Draws: TypeAlias = Literal["nothing", "seed", "generator"]
"""What dropout draws from: a stream by the input `rng.seed`, or PyTorch's generator, whose state is part of the run."""
Precision: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Returns the context of the forward pass, for example `torch.autocast`."""


@dataclass(frozen=True)
class TrainingStep:
    """The definition of a step without its tensors."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    clip_norm: float | None = None
    accumulation: int = 1
    draws: Draws = "nothing"
    precision: Precision = nullcontext
    reduction: Reduction = "mean"
    ema: Ema | None = None
    edits: Edits = NO_EDITS

    def reduced(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss of the step, from those of its micro-batches."""
        stacked = torch.stack(list(losses))
        return losses[0] if len(losses) == 1 else stacked.mean() if self.reduction == "mean" else stacked.sum()

    def share(self, loss: torch.Tensor) -> torch.Tensor:
        """What a micro-batch is differentiated by: its share of the loss of the step."""
        return loss / self.accumulation if self.accumulation > 1 and self.reduction == "mean" else loss

    @cached_property
    def rules(self) -> tuple[GroupRule, ...]:
        """The rule of each parameter group; raises `UnavailableError` for an unsupported optimizer."""
        return rules_of(self.optimizer)

    @property
    def trained(self) -> list[str]:
        """The names of the parameters that require a gradient."""
        return [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    @property
    def groups(self) -> list[list[str]]:
        """The names of the parameters of each group; raises `UnavailableError` for one that the model does not have."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        groups = [list(group["params"]) for group in self.optimizer.param_groups]
        if not all(parameter in names for group in groups for parameter in group):
            raise UnavailableError("the optimizer holds a parameter that is none of the model's")
        return [[names[parameter] for parameter in group] for group in groups]


# The names of a captured step's inputs: those of a run's states, batches and schedules.

ROLES: Final = {
    "weights": Role.WEIGHT,
    "buffers": Role.BUFFER,
    "optimizer": Role.OPTIMIZER,
    "ema": Role.OPTIMIZER,
    "position": Role.OPTIMIZER,
    "schedule": Role.SCHEDULE,
    "rng": Role.RNG,
    "inputs": Role.INPUT,
}
"""The role of an input by the first word of its name."""


def role_of(name: str) -> Role:
    """The role of the input `name`."""
    return ROLES[name.partition(".")[0]]


def is_state(name: str) -> bool:
    """Whether the tensor is part of the state that the next step reads."""
    return name.startswith(STATE_PREFIXES)


def batch_prefix(index: int, accumulation: int) -> str:
    """The prefix of the names of micro-batch `index`."""
    return "inputs." if accumulation == 1 else f"inputs.{index}."


def batch_of(tensors: Mapping[str, torch.Tensor], index: int, accumulation: int) -> dict[str, torch.Tensor]:
    """Micro-batch `index`, by the names that the loss uses."""
    prefix = batch_prefix(index, accumulation)
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix) and name != BATCH + GENERATOR_MOVE
    }


def group_suffix(index: int, count: int) -> str:
    """The suffix of the names of scalars: empty for a single group of parameters, else the group's index."""
    return "" if count == 1 else f".{index}"


def named_scalars(rules: Sequence[GroupRule], learning_rates: Sequence[float], step: int) -> dict[str, float]:
    """The scalars of step `step` (1-based) of every group, by the names of the graph."""
    return {
        f"schedule.{name}{group_suffix(index, len(rules))}": value
        for index, (rule, rate) in enumerate(zip(rules, learning_rates, strict=True))
        for name, value in schedule_scalars(rule, rate, step).items()
    }


# An example of every tensor that a step reads; only shapes and dtypes matter.
#
# Each example is a separate object, because tracing treats one object as one value.


def step_inputs(
    step: TrainingStep, batches: Sequence[Batch]
) -> tuple[dict[str, torch.Tensor], frozenset[str], dict[str, float]]:
    """The examples for `step` and micro-batches like these, sorted by name.

    Also the names of the slots that the optimizer allocates when it first needs them, and the numbers that fill slots
    before the first step, where they are not 0.
    """
    live = live_tensors(step.model, step.optimizer) | ({} if step.ema is None else step.ema.live(step.model))
    examples = {name: torch.empty_like(value.detach()) for name, value in live.items()}
    examples[POSITION] = torch.zeros((), dtype=torch.int64)
    for index, batch in enumerate(batches):
        prefix = batch_prefix(index, step.accumulation)
        examples |= {f"{prefix}{name}": torch.empty_like(value) for name, value in batch.items()}
    scalars = named_scalars(step.rules, [0.0] * len(step.rules), 1)
    examples |= {name: torch.zeros((), dtype=torch.float64) for name in scalars}
    if step.draws == "seed":
        examples[SEED] = seed_tensor(bytes(16))
    elif step.draws == "generator":
        examples[GENERATOR] = torch.zeros(STATE_SIDE, dtype=torch.int64)
        examples[BATCH + GENERATOR_MOVE] = torch.zeros(2, dtype=torch.int64)
    unallocated, starts = dict[str, torch.Tensor](), dict[str, float]()
    parameters = {name: value.detach() for name, value in step.model.named_parameters()}
    for rule, names in zip(step.rules, step.groups, strict=True):
        for name, parameter in ((name, parameters[name]) for name in names):
            for slot, filled in rule.slots(spec_of(parameter)).items():
                if str(filled.start) != "0.0":
                    starts[f"optimizer.{name}.{slot}"] = filled.start
                if f"optimizer.{name}.{slot}" not in examples:
                    unallocated[f"optimizer.{name}.{slot}"] = _example(filled.spec, parameter)
    return dict(sorted((examples | unallocated).items())), frozenset(unallocated), starts


def _example(spec: TensorSpec, parameter: torch.Tensor) -> torch.Tensor:
    """An example of a slot; one of the parameter's form has its strides too, and a number lies on the CPU."""
    if spec == spec_of(parameter):
        return torch.empty_like(parameter)
    return torch.zeros(spec.shape, dtype=DTYPES[spec.dtype], device=parameter.device if spec.shape else "cpu")


# A captured training step: its graph, the bytes of its constants, and the inputs that each step needs.


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
    """Whether the graph holds for batches only whose masks are as full as those of the example."""
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
        slots = dict[str, Tensor]()
        for name in (name for name in self.state if name.startswith(("optimizer.", "position."))):
            spec = specs[name]
            if name in self.starts:
                slots[name] = to_tensor(torch.full(spec.shape, self.starts[name], dtype=DTYPES[spec.dtype]))
            else:
                slots[name] = Tensor(spec.dtype, spec.shape, bytes(spec.nbytes))
        return slots

    def schedule(self, step: int, *learning_rates: float) -> dict[str, Tensor]:
        """The scalars of step `step` (1-based) by their names in the graph; one learning rate per parameter group.

        Raises `UsageError` for a wrong number of learning rates, and for a step before the first.
        """
        if len(learning_rates) != len(self.rules):
            raise UsageError(f"{len(self.rules)} learning rates are needed, one for each group of parameters")
        scalars = named_scalars(self.rules, learning_rates, step)
        return {name: Tensor.of(np.asarray(value, np.float64)) for name, value in scalars.items()}


# Checks that a captured step gives the bits of the eager step: both run once on the same values.
#
# A model can behave differently during export, because libraries branch on it. Then the graph is another program than
# the one that trains. Comparing loss and gradients is enough, because the optimizer's arithmetic is this project's own.

SEED_OF_CHECK = bytes(range(16))
GENERATOR_SEED = 1


def check_bits(captured: CapturedStep, step: TrainingStep, batches: Sequence[Batch], examples: Tensors) -> None:
    """Raise `UnavailableError` unless graph and eager model give the same loss, norm and gradients, bit by bit.

    Args:
        captured: the captured graph of `step`.
        step: the eager step; it is taken with copies of its model's tensors.
        batches: the micro-batches.
        examples: the inputs of the graph; weights and buffers are the model's tensors, and scalars of the schedule 0.
    """
    given = {name: torch.zeros_like(value) for name, value in examples.items() if not is_state(name)}
    for index, batch in enumerate(batches):
        given |= {batch_prefix(index, step.accumulation) + name: value for name, value in batch.items()}
    if step.draws == "seed":
        given[SEED] = seed_tensor(SEED_OF_CHECK)
    elif step.draws == "generator":
        given[GENERATOR] = torch.from_numpy(seeded(GENERATOR_SEED))
        given[BATCH + GENERATOR_MOVE] = torch.tensor([GOES_ON, 0])
    expected = _eager(step, batches)
    if not (differing := _differing(expected, _replayed(captured, step.model, given, expected))):
        return
    if again := _differing(expected, _eager(step, batches)):
        raise UnavailableError(
            f"two eager steps have not the same bits, first in {again}: "
            "call torch.use_deterministic_algorithms(True), or use one thread"
        )
    raise UnavailableError(
        f"the captured step has not the bits of the eager one, first in {differing}: "
        f"the model or a library computes otherwise while it is exported{_eager_attention(step.model)}"
    )


def _eager_attention(model: nn.Module) -> str:
    """What helps some models of transformers, which have several implementations of attention."""
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return "" if kind in {None, "eager"} else f" (its attention is {kind}; others have attn_implementation='eager')"


def _differing(expected: Tensors, others: Tensors) -> str:
    """The first name under which they have other bits; NaN is not compared."""
    pairs = ((name, value, others[name]) for name, value in expected.items())
    return next((name for name, value, other in pairs if not torch.equal(value, other) and not value.isnan().any()), "")


def _replayed(
    captured: CapturedStep, model: nn.Module, given: Mapping[str, torch.Tensor], wanted: Collection[str]
) -> Mapping[str, torch.Tensor]:
    """The `wanted` outputs; what only the optimizer needs is neither computed nor allocated."""
    engine, part = TorchEngine(next(model.parameters()).device.type), _giving(captured.graph, wanted)
    live = {f"weights.{name}": value.detach() for name, value in model.named_parameters()}
    live |= {f"buffers.{name}": value.detach() for name, value in model.named_buffers()}
    fixed = {name: engine.load(tensor) for name, tensor in captured.constants.items()}
    return engine.compile(part)({**given, **fixed, **live})


def _giving(graph: Graph, wanted: Collection[str]) -> Graph:
    """The part of a graph that gives these outputs."""
    outputs, nodes = tuple(each for each in graph.outputs if each.name in wanted), []
    needed = {output.value for output in outputs}
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(filter(None, node.outputs)):
            nodes.append(node)
            needed.update(node.refs)
    inputs = tuple(each for each in graph.inputs if each.name in needed)
    return replace(graph, inputs=inputs, nodes=tuple(reversed(nodes)), outputs=outputs)


@contextmanager
def _drawing(step: TrainingStep) -> Iterator[None]:
    """What the eager step draws from; its caller restores the generator."""
    if step.draws != "seed":
        torch.manual_seed(GENERATOR_SEED)
        yield
        return
    stream, model = explicit_randomness(SEED_OF_CHECK), step.model
    with stream, recomputed(model, stream):
        yield


class _Eager(nn.Module):
    """The eager loop over micro-batches as a module around the model.

    It is called with other tensors in the place of the model's own, in the model itself and not in a copy of it: a
    library that exchanges `forward` for a function holds on to the model that it had, and a copy would train that one.
    """

    def __init__(self, step: TrainingStep, batches: Sequence[Batch]) -> None:
        super().__init__()
        self.model, self._step, self._batches = step.model, step, batches

    def forward(self) -> dict[str, torch.Tensor]:
        """Loss, gradient norm and gradients, by the names of the graph's outputs; checkpoints are recomputed here."""
        step, losses = self._step, []
        for batch in self._batches:
            with step.precision():
                loss, _ = step.objective(self.model, batch)
            step.share(loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        norm = torch.nn.utils.get_total_norm(list(gradients.values()))
        if step.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(list(self.model.parameters()), step.clip_norm)
        state = {f"weights.{name}": p.detach() for name, p in self.model.named_parameters()}
        state |= {f"buffers.{name}": value for name, value in self.model.named_buffers()}
        gradients |= step.edits.edited(gradients, state)
        shown = {f"gradients.{name}": value for name, value in gradients.items()}
        return {"loss": step.reduced(losses), "gradient_norm": norm} | shown


def _eager(step: TrainingStep, batches: Sequence[Batch]) -> dict[str, torch.Tensor]:
    """What the eager step gives on copies of the model's tensors; the gradients of the loop stay as they are."""
    live = {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in step.model.named_parameters()}
    live |= {name: value.detach().clone() for name, value in step.model.named_buffers()}
    tensors = {f"model.{name}": value for name, value in live.items()}
    with torch.random.fork_rng(devices=[]), _drawing(step):
        results: dict[str, torch.Tensor] = functional_call(_Eager(step, batches), tensors, ())
    return results
