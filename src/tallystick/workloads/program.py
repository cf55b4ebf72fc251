"""The step graph of a run with all that a replay of it reads besides an anchor.

inputs.<name>      the batch of a step; inputs.<k>.<name> for micro-batch k of several
schedule.<name>    what follows from settings, learning rate and step number; schedule.<name>.<g> for group g of several
rng.seed           the key of the step's random numbers, for a run with a seed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tallystick.datasets.order import BatchPlan
from tallystick.datasets.samples import Dataset
from tallystick.errors import MalformedError
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.recipe import Recipe
from tallystick.transcripts.rule import GroupRule, SlotSpec
from tallystick.workloads.names import BATCH, POSITION, SEED, STATE_PREFIXES, STEP_SLOT, parameter_of
from tallystick.workloads.optimizer import rule_of_recipe, schedule_scalars
from tallystick.workloads.plan import micro_batches
from tallystick.workloads.schedule import learning_rate

if TYPE_CHECKING:
    from tallystick.graphs.graph import Graph, Ref

Bind = Callable[[int], State]


@dataclass(frozen=True)
class Further:
    """What is another in a step than in the spec: graph and constants, or the rules of the optimizer, or both."""

    graph: Graph | None = None
    constants: State | None = None
    rules: tuple[GroupRule, ...] | None = None


@dataclass(frozen=True)
class StepProgram:
    """A step graph, the bytes of its constants, and where batches and learning rates come from.

    `batch` gives the batch of a step by the names of the graph's inputs, `rates` one learning rate for each rule;
    `seed` is that of a run whose steps draw random numbers. `further` says what is another in a step; it raises
    `UnavailableError` for a step that has no graph, and `ProofError` for a graph that is not one of this training.
    `grows` says that parameters may begin to train later, with slots that `graph` has not.
    """

    graph: Graph
    constants: State
    rules: tuple[GroupRule, ...]
    batch: Bind
    rates: Callable[[int], tuple[float, ...]]
    seed: int | None = None
    further: Callable[[int], Further | None] = lambda _: None
    grows: bool = False

    def __post_init__(self) -> None:
        given = {output.name for output in self.graph.outputs}
        missing = sorted((self.state_names | {POSITION, "loss"}) - given)
        if missing or POSITION not in self.state_names:
            raise MalformedError(f"step graph: no step of a training; it lacks {missing[0] if missing else POSITION}")

    def at(self, index: int) -> StepProgram:
        """The program of step `index`; raises what `further` raises."""
        found = self.further(index)
        if found is None:
            return self
        graph, constants = found.graph or self.graph, found.constants if found.graph else self.constants
        return replace(self, graph=graph, constants=constants or {}, rules=found.rules or self.rules)

    @property
    def state_names(self) -> frozenset[Ref]:
        """The tensors of the state that a step reads and writes."""
        return frozenset(each.name for each in self.graph.inputs if each.name.startswith(STATE_PREFIXES))

    def bindings(self, state: State, index: int) -> dict[Ref, Tensor]:
        """Everything that step `index` reads, given the state before it.

        Raises `MalformedError` where the step's batch or the state is not one of this graph.
        """
        found = {**state, **self.constants, **self.batch(index), **self.schedule(state, index)}
        if self.seed is not None:
            from tallystick.workloads.draws import step_seed  # few runs draw

            found[SEED] = step_seed(self.seed, index)
        for each in self.graph.inputs:
            if each.name not in found:
                raise MalformedError(f"step {index}: {each.name} is not there")
            if TensorSpec.of(found[each.name]) != each.spec:
                given = TensorSpec.of(found[each.name])
                raise MalformedError(f"step {index}: {each.name} is {given}, and {each.spec} in the step graph")
        return found

    def first_slot(self, name: Ref) -> SlotSpec:
        """How a slot of the optimizer begins when its parameter begins to train.

        Raises `MalformedError` where no rule of the step has that slot, or two begin it with different numbers.
        """
        specs = {each.name: each.spec for each in self.graph.inputs}
        weight, slot = specs.get(f"weights.{parameter_of(name)}"), name.rpartition(".")[2]
        found = [rule.slots(weight).get(slot) for rule in self.rules] if weight else []
        slots = {each for each in found if each is not None and each.spec == specs[name]}
        if len(slots) != 1:
            raise MalformedError(f"step graph: {name} is no slot of its optimizer")
        return slots.pop()

    def schedule(self, state: State, index: int) -> dict[Ref, Tensor]:
        """The schedule's scalars at step `index`; an optimizer that had stepped before the run goes on counting."""
        counts = {float(t.values()) for name, t in state.items() if _counts_steps(name, t)}
        step = int(max(counts)) + 1 if counts else index
        return schedule_tensors(self.rules, self.rates(index), step)


def schedule_tensors(rules: Sequence[GroupRule], rates: Sequence[float], step: int) -> dict[Ref, Tensor]:
    """The scalars of `step` as 0-dimensional F64 tensors by the names of the graph's inputs."""
    if len(rates) != len(rules):
        raise MalformedError(f"step {step}: {len(rates)} learning rates for {len(rules)} parameter groups")
    suffixes = [""] if len(rules) == 1 else [f".{group}" for group in range(len(rules))]
    return {
        f"schedule.{name}{suffix}": Tensor.of(np.asarray(value, np.float64))
        for rule, rate, suffix in zip(rules, rates, suffixes, strict=True)
        for name, value in schedule_scalars(rule, rate, step).items()
    }


def recipe_batch(recipe: Recipe, dataset: Dataset, plan: BatchPlan, index: int) -> dict[Ref, Tensor]:
    """The batch of step `index` as the step graph of a recipe names it."""
    parts = list(micro_batches(recipe, dataset, plan.indices(index)))
    return {
        f"{BATCH}{name}" if len(parts) == 1 else f"{BATCH}{number}.{name}": Tensor.of(np.ascontiguousarray(value))
        for number, part in enumerate(parts)
        for name, value in part.items()
    }


def recipe_program(
    recipe: Recipe, graph: Graph, constants: Mapping[str, Tensor], dataset: Dataset, plan: BatchPlan
) -> StepProgram:
    """The step graph of a recipe, fed from its committed data."""
    return StepProgram(
        graph,
        constants,
        (rule_of_recipe(recipe.optimizer),),
        lambda index: recipe_batch(recipe, dataset, plan, index),
        lambda index: (learning_rate(recipe, index),),
    )


def _counts_steps(name: str, tensor: Tensor) -> bool:
    return name.startswith("optimizer.") and name.endswith(STEP_SLOT) and tensor.shape == ()
