"""The step graph of a run with all that a replay of it reads besides an anchor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes
from tallystick.core.errors import MalformedError
from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.formats.data.preparation import open_dataset
from tallystick.formats.data.samples import BatchPlan, Dataset
from tallystick.formats.optimizers import GroupRule, SlotSpec, rule_of_recipe, schedule_scalars
from tallystick.formats.recipe import Recipe, learning_rate
from tallystick.formats.spec import Spec
from tallystick.programs.graph import Graph, Ref
from tallystick.programs.random_words import KEY_BYTES
from tallystick.programs.step_names import BATCH, POSITION, SEED, STATE_PREFIXES, STEP_SLOT, parameter_of

# How a spec and its data become the batches of a step: one definition for prover and verifier.

DIGIT_CLASSES = 10


def batch_plan(spec: Spec, dataset: Dataset) -> BatchPlan:
    """Which examples each step consumes, from the data root and the seed alone."""
    recipe, root = spec.recipe, spec.data_root
    assert recipe is not None  # a batch plan exists only for a recipe
    assert root is not None
    seed, kept = recipe.training.seed, recipe.data.validation
    return BatchPlan(root, seed, dataset.count, kept, recipe.examples_per_step)


def open_data(spec: Spec, folder: Path) -> Dataset:
    """The committed data of a run, cut into the windows of its recipe; raises what `open_dataset` raises."""
    recipe, commitment = spec.recipe, spec.data
    assert recipe is not None  # only a recipe has data
    assert commitment is not None
    return open_dataset(folder, commitment, recipe.training.sequence)


def classes(spec: Spec) -> int:
    """How many tokens or labels the model of a recipe tells apart."""
    commitment = spec.data
    assert commitment is not None
    return DIGIT_CLASSES if commitment.tokens is None else commitment.tokens.vocabulary


def micro_batches(recipe: Recipe, dataset: Dataset, indices: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """The batches of one step in the order in which their gradients are summed."""
    for part in np.split(indices, recipe.training.accumulation):
        yield dataset.batch(part)


def projection_seed(spec: Spec) -> bytes:
    """The public seed of the projections of a run: 32 bytes, fixed with the spec."""
    return digest_bytes(spec.identity)


# The random numbers of a step: a stream that follows from the seed of a run and the number of the step alone.
#
# See `spec/spec.md`; its vectors stand in `vectors/philox/`.


def step_key(seed: int, step: int) -> bytes:
    """The 32 bytes that key the stream of a step, which is counted from 1."""
    return digest_bytes(digest("seed", encode({"seed": seed, "step": step})))


def step_seed(seed: int, step: int) -> Tensor:
    """The key of a step's stream as its graph reads it: I64[2], the two little-endian words."""
    return Tensor.of(np.frombuffer(step_key(seed, step)[:KEY_BYTES], "<i8"))


# The step graph of a run with all that a replay of it reads besides an anchor.
#
# inputs.<name>      the batch of a step; inputs.<k>.<name> for micro-batch k of several
# schedule.<name>    what follows from settings, learning rate and step number; schedule.<name>.<g> for group g
# rng.seed           the key of the step's random numbers, for a run with a seed

Bind = Callable[[int], State]


@dataclass(frozen=True)
class StepOverride:
    """What one step replaces of the spec: graph and constants, the rules of the optimizer, or both."""

    graph: Graph | None = None
    constants: State | None = None
    rules: tuple[GroupRule, ...] | None = None


@dataclass(frozen=True)
class StepProgram:
    """A step graph, the bytes of its constants, and where batches and learning rates come from.

    `batch` gives the batch of a step by the names of the graph's inputs, `rates` one learning rate for each rule;
    `seed` is that of a run whose steps draw random numbers. `further` gives what a step replaces of the spec; it raises
    `UnavailableError` for a step that has no graph, and `ProofError` for a graph that is not one of this training.
    `grows` says that parameters may begin to train later, with slots that `graph` has not.
    """

    graph: Graph
    constants: State
    rules: tuple[GroupRule, ...]
    batch: Bind
    rates: Callable[[int], tuple[float, ...]]
    seed: int | None = None
    further: Callable[[int], StepOverride | None] = lambda _: None
    grows: bool = False

    def __post_init__(self) -> None:
        given = {output.name for output in self.graph.outputs}
        missing = sorted((self.state_names | {POSITION, "loss"}) - given)
        if missing or POSITION not in self.state_names:
            raise MalformedError(f"step graph: no step of a training; it lacks {missing[0] if missing else POSITION}")

    def at(self, index: int) -> StepProgram:
        """The program of step `index`; raises what `further` raises."""
        override = self.further(index)
        if override is None:
            return self
        graph, constants = override.graph or self.graph, override.constants if override.graph else self.constants
        return replace(self, graph=graph, constants=constants or {}, rules=override.rules or self.rules)

    @property
    def state_names(self) -> frozenset[Ref]:
        """The tensors of the state that a step reads and writes."""
        return frozenset(value.name for value in self.graph.inputs if value.name.startswith(STATE_PREFIXES))

    def bindings(self, state: State, index: int) -> dict[Ref, Tensor]:
        """Everything that step `index` reads, given the state before it.

        Raises `MalformedError` where the step's batch or the state is not one of this graph.
        """
        bound = {**state, **self.constants, **self.batch(index), **self.schedule(state, index)}
        if self.seed is not None:
            bound[SEED] = step_seed(self.seed, index)
        for value in self.graph.inputs:
            if value.name not in bound:
                raise MalformedError(f"step {index}: {value.name} is not there")
            if TensorSpec.of(bound[value.name]) != value.spec:
                given = TensorSpec.of(bound[value.name])
                raise MalformedError(f"step {index}: {value.name} is {given}, and {value.spec} in the step graph")
        return bound

    def first_slot(self, name: Ref) -> SlotSpec:
        """How a slot of the optimizer begins when its parameter begins to train.

        Raises `MalformedError` where no rule of the step has that slot, or two begin it with different numbers.
        """
        specs = {value.name: value.spec for value in self.graph.inputs}
        weight, slot = specs.get(f"weights.{parameter_of(name)}"), name.rpartition(".")[2]
        stated = [rule.slots(weight).get(slot) for rule in self.rules] if weight else []
        slots = {slot_spec for slot_spec in stated if slot_spec is not None and slot_spec.spec == specs[name]}
        if len(slots) != 1:
            raise MalformedError(f"step graph: {name} is no slot of its optimizer")
        return slots.pop()

    def schedule(self, state: State, index: int) -> dict[Ref, Tensor]:
        """The schedule's scalars at step `index`; an optimizer that had stepped before the run continues its count."""
        steps = (name for name in state if name.startswith("optimizer.") and name.endswith(STEP_SLOT))
        counts = {float(state[name].values()) for name in steps if state[name].shape == ()}
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
