"""The step of a custom training loop as a graph, captured and saved with the run and its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tallystick.commitments.digests import Digest
from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.captured_step import CapturedStep
from tallystick.frameworks.torch.capture.edits import NO_EDITS, Edits
from tallystick.frameworks.torch.capture.step import Loss, Precision, Reduction
from tallystick.frameworks.torch.capture.training_step import capture_training_step
from tallystick.frameworks.torch.dropout import dropout_is_known
from tallystick.frameworks.torch.ema import Ema
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.graphs.files import save_program
from tallystick.graphs.graph import Graph
from tallystick.graphs.root import graph_root
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.record import batch_file
from tallystick.transcripts.rule import GroupRule
from tallystick.workloads.masks import full_masks
from tallystick.workloads.names import BATCH

ONE_SHAPE = (
    "this step was not watched, and the loss of the first one is known for batches of one shape; "
    "give `loss=` and `example=`"
)
UNEVEN = (
    "parameters that begin to train later count their steps on their own in this optimizer; "
    "train them from the start with a learning rate of 0, or record a run of its own from there, with a new optimizer"
)
Batch: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]"
Batches: TypeAlias = "Batch | Sequence[Batch]"
LossOfBatch: TypeAlias = Any
"""A function `(model, batch)` that returns the loss; the batch has the form that the loop uses."""
Recapture: TypeAlias = "Callable[[Batches, int], StepGraph]"
"""Captures the step of a batch with so many micro-batches; raises `UnavailableError` if that cannot be."""


@dataclass(frozen=True)
class StepGraph:
    """A captured step, the model and loss it was captured from, and its number of micro-batches."""

    captured: CapturedStep
    accumulation: int
    model: torch.nn.Module
    loss: LossOfBatch
    clip_norm: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the example that are no tensors, by name: constants of the graph, even if later batches differ."""
    fixed: tuple[str, ...] | None = None
    """For a step that was watched: its constants in words, tensors that came neither from the model nor the batch."""
    reduction: Reduction = "mean"
    seed: int | None = None
    """The seed of the run, where the step draws random numbers from it."""
    masks: frozenset[str] | None = None
    """Which masks of the example were full, if that decides what is computed (`workloads.masks`)."""
    edits: Edits = NO_EDITS
    """What the loop writes into gradients and weights besides clipping and the optimizer."""
    again: Recapture | None = None
    """Captures the step of another batch; `None` where the loss is known for batches of one shape only."""

    @cached_property
    def root(self) -> Digest:
        """The digest that names the graph."""
        return graph_root(self.captured.graph)

    @cached_property
    def trained(self) -> frozenset[str]:
        """The parameters that have a gradient in every step."""
        prefix, outputs = "gradients.", (output.name for output in self.captured.graph.outputs)
        return frozenset(name.removeprefix(prefix) for name in outputs if name.startswith(prefix))

    @property
    def rules(self) -> tuple[GroupRule, ...]:
        """The settings of the optimizer as a spec states them."""
        return self.captured.rules

    @cached_property
    def batch_specs(self) -> tuple[tuple[str, TensorSpec], ...]:
        """The specs of the batch that the graph reads, by name."""
        found = (each for each in self.captured.graph.inputs if each.name.startswith(BATCH))
        return tuple(sorted((each.name.removeprefix(BATCH), each.spec) for each in found))

    def with_graph(self, graph: Graph) -> StepGraph:
        """The same step as another graph, for a batch of other sizes."""
        return replace(self, captured=replace(self.captured, graph=graph))

    def has_masks_of(self, named: State) -> bool:
        """Whether the masks of a batch are as full as those of the example, or do not matter."""
        return not self._other_mask(named)

    def save(self, path: Path) -> None:
        """Write the graph to `path`, and its constants beside it."""
        save_program(path, self.captured.graph, self.captured.constants, self.captured.modules)

    def empty_slots(self) -> dict[str, Tensor]:
        """Every slot of the optimizer before the first step, even if not allocated yet."""
        slots = self.captured.empty_slots()
        return {name: tensor for name, tensor in slots.items() if name.startswith("optimizer.")}

    def misfit(self, named: State) -> str:
        """Names the first part of a batch that the graph cannot read; empty if it can read all."""
        wanted = {each.name: each.spec for each in self.captured.graph.inputs if each.name.startswith(BATCH)}
        given = {f"{BATCH}{name}": TensorSpec.of(tensor) for name, tensor in named.items()}
        for name in sorted(wanted.keys() | given.keys()):
            if wanted.get(name) != given.get(name):
                return (
                    f"{name} is {given.get(name, 'not there')}, and {wanted.get(name, 'not there')} in the step graph"
                )
        return self._other_mask(named)

    def _other_mask(self, named: State) -> str:
        """Names the first mask that is full in one of both batches alone; empty if there is none, or it is the same."""
        if self.masks is None or not (other := sorted(full_masks(named) ^ self.masks)):
            return ""
        here, there = ("zeros", "only ones") if other[0] in self.masks else ("only ones", "zeros")
        return f"{BATCH}{other[0]} holds {here}, and {there} in the step graph"

    def other_number(self, found: Mapping[str, float]) -> str:
        """Names the first number of a batch that differs from the captured step; empty if none does."""
        for name in sorted(found.keys() | self.numbers.keys()):
            now, then = found.get(name, "not there"), self.numbers.get(name, "not there")
            if now != then:
                return (
                    f"{name} of the batch is {now}, and {then} in the captured step, where it is a constant; "
                    "make it a tensor, or leave it out of the batch where the loss does not use it"
                )
        return ""


def capture_loop(
    model: torch.nn.Module,
    loss: LossOfBatch,
    optimizer: torch.optim.Optimizer,
    example: Batches,
    *,
    clip_norm: float | None = None,
    accumulation: int = 1,
    fixed: tuple[str, ...] | None = None,
    precision: Precision = nullcontext,
    reduction: Reduction = "mean",
    seed: int | None = None,
    is_native: bool | None = None,
    ema: Ema | None = None,
    edits: Edits = NO_EDITS,
) -> StepGraph:
    """Capture the step of a loop; `loss(model, batch)` gets batches in the form of `example`, under `precision`.

    With the `seed` of a run the step draws its random numbers from the input `rng.seed`; one that `is_native` draws
    those of dropout as PyTorch does, from the state of its generator, as a step does by default whose layers drop.

    Raises `UnavailableError` with the reason if the step cannot be captured.
    """
    if _counts_unevenly(model, optimizer):
        raise UnavailableError(UNEVEN)
    parts = parts_of(example, accumulation)
    first = parts[0]
    is_native = dropout_is_known(model) if is_native is None else is_native

    def of_tensors(called: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = loss(called, _like(first, tensors))
        return result

    objective: Loss = of_tensors
    captured = capture_training_step(
        model,
        objective,
        optimizer,
        [as_mapping(part) for part in parts],
        clip_norm=clip_norm,
        accumulation=accumulation,
        precision=precision,
        reduction=reduction,
        draws="seed" if seed is not None else "generator" if is_native else "nothing",
        ema=ema,
        edits=edits,
    )
    numbers = numbers_of([first] * accumulation if accumulation > 1 else first, accumulation)

    shapes = _shapes(example, accumulation)

    def again(batch: Batches, count: int) -> StepGraph:
        if count != accumulation:
            raise UnavailableError(f"a step of {count} micro-batches, and {accumulation} are in the step graph")
        if fixed is not None and _shapes(batch, count) != shapes:
            raise UnavailableError(ONE_SHAPE)
        return capture_loop(
            model,
            loss,
            optimizer,
            batch,
            clip_norm=clip_norm,
            accumulation=count,
            fixed=fixed,
            precision=precision,
            reduction=reduction,
            seed=seed,
            is_native=is_native,
            ema=ema,
            edits=edits,
        )

    masks = full_masks(named_tensors(example, accumulation)) if captured.reads_masks or fixed is not None else None
    found = StepGraph(captured, accumulation, model, loss, clip_norm, numbers, fixed, reduction, seed, masks, edits)
    return replace(found, again=again)


def _counts_unevenly(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Whether parameters with a gradient have taken different numbers of steps, which decide their next one."""
    trained = [each for each in model.parameters() if each.grad is not None]
    counts = {float(held["step"]) for each in trained if "step" in (held := optimizer.state.get(each, {}))}
    return len(counts) > 1


def _shapes(batch: Batches, count: int) -> dict[str, TensorSpec]:
    return {name: TensorSpec.of(value) for name, value in named_tensors(batch, count).items()}


def count_of(batch: Batches, first: StepGraph) -> int:
    """The number of micro-batches of a step, in a loop whose first step has the graph `first`.

    A list of batches is no batch itself: none of its items is a tensor. Several tensors are micro-batches where those
    of the first step are a lone tensor each.
    """
    if not isinstance(batch, list | tuple):
        return 1
    are_lone = first.accumulation > 1 and {name for name, _ in first.batch_specs if name.startswith("0.")} == {"0.x0"}
    return len(batch) if are_lone or _are_batches(batch) else 1


def the_only_one(batch: Any) -> Any:
    """The micro-batch in a list of one; any other batch as it is."""
    return batch[0] if isinstance(batch, list | tuple) and len(batch) == 1 and _are_batches(batch) else batch


def _are_batches(parts: Sequence[Any]) -> bool:
    return bool(parts) and all(not isinstance(part, torch.Tensor) and as_mapping(part) for part in parts)


def named_tensors(batch: Batches, count: int) -> dict[str, Tensor]:
    """Copies of the tensors of `count` micro-batches, by the names of a step graph without `inputs.`."""
    return {
        name if count == 1 else f"{number}.{name}": to_tensor(value).copy()
        for number, part in enumerate(parts_of(batch, count))
        for name, value in as_mapping(part).items()
    }


def keep_batch(run: RunDirectory, named: State) -> Digest:
    """Write a batch to a file named by its state digest, unless it is there; return the digest."""
    name = state_digest(named)
    path = run.path / batch_file(name)
    if not path.exists():
        write_state(path, named)
    return name


def as_mapping(batch: Batch) -> dict[str, torch.Tensor]:
    """The tensors of a batch by name: a lone tensor is `x0`, those of a sequence are `x0`, `x1` and so on.

    Anything else, as `None`, holds none.
    """
    if isinstance(batch, torch.Tensor):
        return {"x0": batch}
    if isinstance(batch, Mapping):
        return {name: value for name, value in sorted(batch.items()) if isinstance(value, torch.Tensor)}
    return {name: value for name, value in _items(batch) if isinstance(value, torch.Tensor)}


def numbers_of(batch: Batches, accumulation: int) -> dict[str, float]:
    """The numbers of a batch that are no tensors, named as tensors in their positions would be."""
    return {
        name if accumulation == 1 else f"{number}.{name}": value
        for number, part in enumerate(parts_of(batch, accumulation))
        for name, value in _items(part)
        if isinstance(value, int | float)
    }


def _items(batch: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(batch, torch.Tensor):
        return ()
    if isinstance(batch, Mapping):
        return batch.items()
    return ((f"x{number}", value) for number, value in enumerate(batch if isinstance(batch, Iterable) else ()))


def _like(example: Batch, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The tensors in the form of the example; its other values are kept."""
    if isinstance(example, torch.Tensor):
        return tensors["x0"]
    if isinstance(example, Mapping):
        return {name: tensors.get(name, value) for name, value in example.items()}
    return tuple(tensors.get(f"x{number}", value) for number, value in enumerate(example))


def parts_of(batch: Batches, accumulation: int) -> list[Any]:
    """The micro-batches of a step."""
    return [batch] if accumulation == 1 else list(batch)
