"""The step of a custom training loop as a graph: captured once and saved with the run and its batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch

from tallystick.commitments.digests import Digest
from tallystick.frameworks.torch.capture.captured_step import CapturedStep
from tallystick.frameworks.torch.capture.step import Loss
from tallystick.frameworks.torch.capture.training_step import capture_training_step
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.graphs.files import save_program
from tallystick.graphs.root import graph_root
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.record import batch_file
from tallystick.transcripts.rule import GroupRule
from tallystick.workloads.names import BATCH

Batch: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]"
Batches: TypeAlias = "Batch | Sequence[Batch]"
LossOfBatch: TypeAlias = Any
"""A function `(model, batch)` that returns the loss; the batch has the form that the loop uses."""


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

    @property
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
        return tuple(rule.to_group() for rule in self.captured.rules)

    def save(self, run: RunDirectory) -> None:
        """Write the graph and its constants into the run directory."""
        save_program(run.graph_path, self.captured.graph, self.captured.constants, self.captured.modules)

    def empty_slots(self) -> dict[str, Tensor]:
        """Zeros for every slot of the optimizer: its state before the first step, even if not allocated yet."""
        slots = {each.name: each.spec for each in self.captured.graph.inputs if each.name.startswith("optimizer.")}
        return {name: Tensor(spec.dtype, spec.shape, bytes(spec.nbytes)) for name, spec in slots.items()}

    def named(self, batch: Batches) -> dict[str, Tensor]:
        """Copies of the tensors of a step's batch, by the names of the graph without `inputs.`."""
        return {
            name if self.accumulation == 1 else f"{number}.{name}": to_tensor(value).copy()
            for number, part in enumerate(parts_of(batch, self.accumulation))
            for name, value in as_mapping(part).items()
        }

    def misfit(self, named: State) -> str:
        """Names the first part of a batch that the graph cannot read; empty if it can read all."""
        wanted = {each.name: each.spec for each in self.captured.graph.inputs if each.name.startswith(BATCH)}
        given = {f"{BATCH}{name}": TensorSpec.of(tensor) for name, tensor in named.items()}
        for name in sorted(wanted.keys() | given.keys()):
            if wanted.get(name) != given.get(name):
                return (
                    f"{name} is {given.get(name, 'not there')}, and {wanted.get(name, 'not there')} in the step graph"
                )
        return ""

    def other_number(self, batch: Batches) -> str:
        """Names the first number of a batch that differs from the captured step; empty if none does."""
        found = numbers_of(batch, self.accumulation)
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
) -> StepGraph:
    """Capture the step of a loop; `loss(model, batch)` gets batches in the form of `example`.

    Raises `UnavailableError` with the reason if the step cannot be captured.
    """
    first = parts_of(example, accumulation)[0]

    def of_tensors(called: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = loss(called, _like(first, tensors))
        return result

    objective: Loss = of_tensors
    captured = capture_training_step(
        model, objective, optimizer, as_mapping(first), clip_norm=clip_norm, accumulation=accumulation
    )
    numbers = numbers_of([first] * accumulation if accumulation > 1 else first, accumulation)
    return StepGraph(captured, accumulation, model, loss, clip_norm, numbers, fixed)


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
