"""The step of a custom training loop as a graph, captured and saved with the run and its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import UnavailableError
from tallystick.core.safetensors import write_state
from tallystick.core.tensor_digests import state_digest, tensor_digest
from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.engines.torch.capture.step import GRADIENTS, NO_EDITS, CapturedStep, Edits, Precision, Reduction
from tallystick.engines.torch.capture.training_step import capture_training_step
from tallystick.engines.torch.randomness import dropout_is_known
from tallystick.engines.torch.tensors import to_tensor
from tallystick.engines.torch.wrappers import Ema
from tallystick.formats.optimizers import GroupRule
from tallystick.formats.records import Batch, batch_file
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import save_program
from tallystick.programs.step_names import BATCH, full_masks

ONE_SHAPE = (
    "this step was not watched, and the loss of the first one is known for batches of one shape; "
    "give `loss=` and `example=`"
)
UNEVEN = (
    "parameters that begin to train later count their steps on their own in this optimizer; "
    "train them from the start with a learning rate of 0, or record a run of its own from there, with a new optimizer"
)
LossOfBatch: TypeAlias = Any
"""A function `(model, batch)` that returns the loss; the batch has the form that the loop uses."""
Recapture: TypeAlias = "Callable[[Sequence[Any]], StepGraph]"
"""Captures the step of such micro-batches; raises `UnavailableError` if that cannot be."""
Specs: TypeAlias = tuple[tuple[str, TensorSpec], ...]
"""Specs by name, sorted."""


@dataclass(frozen=True)
class LoopStep:
    """The step of a loop before it is captured; `loss(model, batch)` gets batches in the form of the loop.

    With the `seed` of a run the step draws its random numbers from the input `rng.seed`; one that `is_native` draws
    those of dropout as PyTorch does, from the state of its generator, as a step does by default whose layers drop.
    """

    model: torch.nn.Module
    loss: LossOfBatch
    optimizer: torch.optim.Optimizer
    clip_norm: float | None = None
    accumulation: int = 1
    fixed: tuple[str, ...] | None = None
    """For a step that was watched: its constants in words, tensors that came neither from the model nor the batch."""
    precision: Precision = nullcontext
    """The context of the forward pass."""
    reduction: Reduction = "mean"
    seed: int | None = None
    is_native: bool | None = None
    ema: Ema | None = None
    edits: Edits = NO_EDITS
    """What the loop writes into gradients and weights besides clipping and the optimizer."""

    def capture(self, parts: Sequence[Any]) -> StepGraph:
        """The step as a graph, captured with micro-batches in the form of the loop.

        Raises `UnavailableError` with the reason if the step cannot be captured.
        """
        trained = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        slots = [self.optimizer.state.get(parameter, {}) for parameter in trained]
        if len({float(held["step"]) for held in slots if "step" in held}) > 1:  # the count decides the next step
            raise UnavailableError(UNEVEN)
        step = replace(self, is_native=dropout_is_known(self.model) if self.is_native is None else self.is_native)

        def objective(called: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
            result: torch.Tensor = self.loss(called, _like(parts[0], tensors))
            return result

        captured = capture_training_step(
            self.model,
            objective,
            self.optimizer,
            [as_mapping(part) for part in parts],
            clip_norm=self.clip_norm,
            accumulation=self.accumulation,
            precision=self.precision,
            reduction=self.reduction,
            draws="seed" if self.seed is not None else "generator" if step.is_native else "nothing",
            ema=self.ema,
            edits=self.edits,
        )
        named, numbers = named_tensors(parts), numbers_of([parts[0]] * self.accumulation)
        masks = full_masks(named) if captured.reads_masks or self.fixed is not None else None
        return StepGraph(captured, step, dict(specs_of(named)), numbers, masks)


@dataclass(frozen=True)
class StepGraph:
    """A captured step and what it was captured from: the step of the loop, and an example with these specs."""

    captured: CapturedStep
    loop: LoopStep
    example: Mapping[str, TensorSpec]
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the example that are no tensors, by name: constants of the graph, even if later batches differ."""
    masks: frozenset[str] | None = None
    """Which masks of the example were full, if that decides what is computed (`programs.step_names`)."""
    recapture: Recapture | None = None
    """Captures the step of another batch, in place of `again`."""

    @cached_property
    def root(self) -> Digest:
        """The digest that names the graph."""
        return graph_root(self.captured.graph)

    @cached_property
    def trained(self) -> frozenset[str]:
        """The parameters that have a gradient in every step."""
        names = (output.name for output in self.captured.graph.outputs)
        return frozenset(name.removeprefix(GRADIENTS) for name in names if name.startswith(GRADIENTS))

    @property
    def rules(self) -> tuple[GroupRule, ...]:
        """The settings of the optimizer as a spec states them."""
        return self.captured.rules

    @cached_property
    def batch_specs(self) -> Specs:
        """The specs of the batch that the graph reads, by name."""
        inputs = (each for each in self.captured.graph.inputs if each.name.startswith(BATCH))
        return tuple(sorted((each.name.removeprefix(BATCH), each.spec) for each in inputs))

    def again(self, parts: Sequence[Any]) -> StepGraph:
        """Captures the step of another batch; raises `UnavailableError` if that cannot be."""
        if self.recapture is not None:
            return self.recapture(parts)
        if len(parts) != self.loop.accumulation:
            count = self.loop.accumulation
            raise UnavailableError(f"a step of {len(parts)} micro-batches, and {count} are in the step graph")
        if self.loop.fixed is not None and dict(specs_of(named_tensors(parts))) != self.example:
            raise UnavailableError(ONE_SHAPE)
        return self.loop.capture(parts)

    def save(self, path: Path) -> None:
        """Write the graph to `path`, and its constants beside it."""
        save_program(path, self.captured.graph, self.captured.constants, self.captured.modules)

    def empty_slots(self) -> dict[str, Tensor]:
        """Every slot of the optimizer before the first step, even if not allocated yet."""
        slots = self.captured.empty_slots()
        return {name: tensor for name, tensor in slots.items() if name.startswith("optimizer.")}

    def misfit(self, named: State) -> str:
        """Names the first part of a batch that the graph cannot read; empty if it can read all."""
        wanted, given = dict(self.batch_specs), dict(specs_of(named))
        for name in sorted(wanted.keys() | given.keys()):
            is_given, is_wanted = given.get(name, "not there"), wanted.get(name, "not there")
            if is_given != is_wanted:
                return f"{BATCH}{name} is {is_given}, and {is_wanted} in the step graph"
        return self.other_mask(named)

    def other_mask(self, named: State) -> str:
        """Names the first mask that is full in one of both batches alone; empty if there is none, or it is the same."""
        if self.masks is None or not (other := sorted(full_masks(named) ^ self.masks)):
            return ""
        here, there = ("zeros", "only ones") if other[0] in self.masks else ("only ones", "zeros")
        return f"{BATCH}{other[0]} holds {here}, and {there} in the step graph"

    def other_number(self, numbers: Mapping[str, float]) -> str:
        """Names the first number of a batch that differs from the captured step; empty if none does."""
        for name in sorted(numbers.keys() | self.numbers.keys()):
            now, then = numbers.get(name, "not there"), self.numbers.get(name, "not there")
            if now != then:
                return (
                    f"{name} of the batch is {now}, and {then} in the captured step, where it is a constant; "
                    "make it a tensor, or leave it out of the batch where the loss does not use it"
                )
        return ""


def count_of(batch: Any, first: StepGraph) -> int:
    """The number of micro-batches of a step, in a loop whose first step has the graph `first`.

    A list of batches is no batch itself: none of its items is a tensor. Several tensors are micro-batches where those
    of the first step are a lone tensor each.
    """
    if not isinstance(batch, list | tuple):
        return 1
    are_lone = first.loop.accumulation > 1 and {name for name, _ in first.batch_specs if name.startswith("0.")} == {
        "0.x0"
    }
    return len(batch) if are_lone or _are_batches(batch) else 1


def the_only_one(batch: Any) -> Any:
    """The micro-batch in a list of one; any other batch as it is."""
    return batch[0] if isinstance(batch, list | tuple) and len(batch) == 1 and _are_batches(batch) else batch


def _are_batches(parts: Sequence[Any]) -> bool:
    return bool(parts) and all(not isinstance(part, torch.Tensor) and as_mapping(part) for part in parts)


def parts_of(batch: Any, count: int) -> list[Any]:
    """The micro-batches of a step."""
    return [batch] if count == 1 else list(batch)


def named_tensors(parts: Sequence[Any]) -> dict[str, Tensor]:
    """Copies of the tensors of micro-batches, by the names of a step graph without `inputs.`."""
    return {
        name if len(parts) == 1 else f"{number}.{name}": to_tensor(value).copy()
        for number, part in enumerate(parts)
        for name, value in as_mapping(part).items()
    }


def numbers_of(parts: Sequence[Any]) -> dict[str, float]:
    """The numbers of micro-batches that are no tensors, named as tensors in their positions would be."""
    return {
        name if len(parts) == 1 else f"{number}.{name}": value
        for number, part in enumerate(parts)
        for name, value in _items(part)
        if isinstance(value, int | float)
    }


def specs_of(named: State) -> Specs:
    """The specs of a batch, by name."""
    return tuple((name, TensorSpec.of(tensor)) for name, tensor in sorted(named.items()))


def describe_batch(batch: Any) -> Batch:
    """The batch of a step without a graph, which may be anything: positions as they are, tensors by one digest."""
    is_sequence = isinstance(batch, Iterable) and not isinstance(batch, torch.Tensor | Mapping)
    items = list(batch) if is_sequence else batch
    tensors = as_mapping(items).values()
    if tensors or isinstance(batch, Mapping):
        return Batch(digest=digest("batch", encode([str(tensor_digest(to_tensor(tensor))) for tensor in tensors])))
    return Batch(indices=tuple(int(item) for item in items if isinstance(item, int)) if is_sequence else ())


def keep_batch(run: RunDirectory, named: State) -> Digest:
    """Write a batch to a file named by its state digest, unless it is there; return the digest."""
    name = state_digest(named)
    path = run.path / batch_file(name)
    if not path.exists():
        write_state(path, named)
    return name


def as_mapping(batch: Any) -> dict[str, torch.Tensor]:
    """The tensors of a batch by name: a lone tensor is `x0`, those of a sequence are `x0`, `x1` and so on.

    Anything else, as `None`, holds none.
    """
    if isinstance(batch, torch.Tensor):
        return {"x0": batch}
    if isinstance(batch, Mapping):
        return {name: value for name, value in sorted(batch.items()) if isinstance(value, torch.Tensor)}
    return {name: value for name, value in _items(batch) if isinstance(value, torch.Tensor)}


def _items(batch: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(batch, torch.Tensor):
        return ()
    if isinstance(batch, Mapping):
        return batch.items()
    return ((f"x{number}", value) for number, value in enumerate(batch if isinstance(batch, Iterable) else ()))


def _like(example: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The tensors in the form of the example; its other values are kept."""
    if isinstance(example, torch.Tensor):
        return tensors["x0"]
    if isinstance(example, Mapping):
        return {name: tensors.get(name, value) for name, value in example.items()}
    return tuple(tensors.get(f"x{number}", value) for number, value in enumerate(example))
