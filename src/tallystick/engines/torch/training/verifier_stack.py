"""A verifier's stack with PyTorch on this machine: its trainer, the replayer of step graphs, the graph of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.tokenizers import TokenizerFile, train_bpe
from tallystick.engines.torch.capture.module_trail import NO_TRAIL, ModuleTrail
from tallystick.engines.torch.capture.step import Batch, CapturedStep, TrainingStep
from tallystick.engines.torch.capture.training_step import captured_step
from tallystick.engines.torch.engine import PreparedGraph, TorchEngine
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.randomness import config_that_drops, describe_dropout
from tallystick.engines.torch.tensors import DTYPES, check_names, from_tensor, to_tensor
from tallystick.engines.torch.training.trainer import (
    CRASHES,
    PARAMETERS_MAX,
    Summariser,
    Trainer,
    first_line,
    labels_of,
    logits_of,
)
from tallystick.formats.data.samples import BatchPlan, Dataset
from tallystick.formats.data.step_program import StepProgram, classes, micro_batches, projection_seed
from tallystick.formats.recipe import Recipe
from tallystick.formats.spec import Environment, Spec
from tallystick.programs.encoding import graph_root
from tallystick.programs.graph import Graph
from tallystick.programs.step_names import POSITION, UPDATED, parameter_of
from tallystick.verdicts.replayer import ReplayedStep, VerifierStack

# Replays a run from its step graph; it runs no code of the prover and builds no model.

OBSERVED = frozenset({"loss", "gradient_norm", "activation.mean", "activation.rms"})
PREPARED_MAX = 8
SHOWN = ("gradients.", UPDATED)
CARRIED = ("rng.",)
"""Prefixes of tensors that a state may hold in addition to the graph's: generators that no step uses."""


class GraphReplayer:
    """Replays steps with the kernels of PyTorch on `device`; implements `Replayer`."""

    def __init__(
        self, spec: Spec, program: StepProgram, device: str = "cpu", parameters_max: int = PARAMETERS_MAX
    ) -> None:
        self._spec, self._program, self._device = spec, program, device
        self._parameters_max = parameters_max
        self._inputs = {each.name: each for each in program.graph.inputs if each.name in program.state_names}
        count = sum(each.spec.size for name, each in self._inputs.items() if name.startswith("weights."))
        if count > parameters_max:
            raise UnavailableError(f"the model has {count} parameters, more than the {parameters_max} allowed")
        self._engine = TorchEngine(device)
        self._prepared: dict[int, tuple[Graph, PreparedGraph, Mapping[str, torch.Tensor]]] = {}
        self._live = {
            name: torch.zeros(each.spec.shape, dtype=DTYPES[each.spec.dtype], device=device)
            for name, each in self._inputs.items()
        }
        self._carried: dict[str, Tensor] = {}
        weights = {name: value for name, value in self._live.items() if name.startswith("weights.")}
        self._summariser = Summariser(
            spec.recorded, projection_seed(spec), weights, self.state, lambda data: digest("blob", data)
        )

    def initial_state(self) -> Mapping[str, Tensor]:
        """The seeded state before the first step, drawn with the verifier's own libraries.

        Raises `UnavailableError` for a run without a recipe: its first state cannot be derived.
        """
        recipe = self._spec.recipe
        if recipe is None:
            raise UnavailableError("the run has no recipe from which its first state could be drawn")
        return Trainer(recipe, classes(self._spec), self._device, self._parameters_max).state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`; raises `MalformedError` if it is not a state of this graph."""
        self._carried = {name: tensor.copy() for name, tensor in state.items() if name.startswith(CARRIED)}
        begun = self._begun(state) if self._program.grows else {}
        check_names(expected=self._inputs.keys(), found=state.keys() - self._carried.keys() - begun.keys())
        for name, each in self._inputs.items():
            if TensorSpec.of(state[name]) != each.spec:
                raise MalformedError(f"anchor: {name} is {TensorSpec.of(state[name])}, not {each.spec}")
        self._live = {name: self._live[name] for name in self._inputs} | begun
        for name in self._inputs:
            self._live[name].copy_(from_tensor(state[name]))

    def step(self, index: int) -> ReplayedStep:
        """Take step `index`.

        Raises `UnavailableError` if it has no graph, or its batch does not fit, or a kernel fails, and `ProofError` for
        a graph that is not one of this training.
        """
        assert index == int(self._live[POSITION]) + 1
        program = self._program.at(index)
        self._begin_slots(program)
        run, constants = self._prepared_of(program)
        state = {name: self._live[name] for name in program.state_names}
        results = run({**constants} | state | self._fed(program, index))
        observed = {name: float(results[name]) for name in OBSERVED & results.keys()}
        with torch.no_grad():
            for name in program.state_names:
                self._live[name].copy_(results[name])
        has_activation = "activation.mean" in observed
        activation = (observed["activation.mean"], observed["activation.rms"]) if has_activation else None
        summary = self._summariser.after_step(index)
        return ReplayedStep(observed["loss"], observed.get("gradient_norm"), activation, summary)

    def _prepared_of(self, program: StepProgram) -> tuple[PreparedGraph, Mapping[str, torch.Tensor]]:
        """The graph of `program` without its gradients, which writes over the state, and its constants."""
        graph = program.graph
        kept = self._prepared.pop(id(graph), None)
        if kept is None:
            run = self._engine.compile(without_gradients(graph), consumed=program.state_names)
            constants = {each.name: self._engine.load(program.constants[each.name]) for each in graph.constants}
            kept = graph, run, constants
        self._prepared[id(graph)] = kept  # with its graph, so that no other graph has this identity
        while len(self._prepared) > PREPARED_MAX:
            del self._prepared[next(iter(self._prepared))]
        return kept[1:]

    @property
    def carried(self) -> Mapping[str, Tensor]:
        """The tensors of the state that no step reads or writes."""
        return self._carried

    def bindings(self, index: int) -> dict[str, Tensor]:
        """All tensors that step `index` reads, with the current state; raises what `step` raises."""
        program = self._program.at(index)
        self._begin_slots(program)
        return self._bindings(program, index)

    def _bindings(self, program: StepProgram, index: int) -> dict[str, Tensor]:
        try:
            return program.bindings(self._graph_state(), index)
        except MalformedError as error:
            raise UnavailableError(str(error)) from None

    def state(self) -> Mapping[str, Tensor]:
        """The full current state; shares memory with the live tensors."""
        return self._graph_state() | self._carried

    def _graph_state(self) -> dict[str, Tensor]:
        return {name: to_tensor(value) for name, value in self._live.items()}

    def _fed(self, program: StepProgram, index: int) -> dict[str, torch.Tensor]:
        """What is new in step `index`: its batch and its schedule."""
        given = self._bindings(program, index)
        fresh = given.keys() - self._live.keys() - program.constants.keys()
        return {name: from_tensor(given[name]).to(self._device) for name in fresh}

    def _begun(self, state: Mapping[str, Tensor]) -> dict[str, torch.Tensor]:
        """The slots in a state of parameters that began to train after the first step."""
        names = [name for name in state.keys() - self._inputs.keys() if name.startswith("optimizer.")]
        known = [name for name in names if f"weights.{parameter_of(name)}" in self._inputs]
        return {name: from_tensor(state[name]).to(self._device) for name in known}

    def _begin_slots(self, program: StepProgram) -> None:
        """Fill the slots of parameters that begin to train; raises `UnavailableError` for a slot of no rule."""
        try:
            missing = {name: program.first_slot(name) for name in sorted(program.state_names - self._live.keys())}
        except MalformedError as error:
            raise UnavailableError(str(error)) from None
        for name, slot in missing.items():
            dtype, device = DTYPES[slot.spec.dtype], self._device if slot.spec.shape else "cpu"
            self._live[name] = torch.full(slot.spec.shape, slot.start, dtype=dtype, device=device)


def without_gradients(graph: Graph) -> Graph:
    """The graph without the outputs that no later step reads, so that they are freed after their last use."""
    return replace(graph, outputs=tuple(each for each in graph.outputs if not each.name.startswith(SHOWN)))


# The verifier's trainer, rebuilt from the spec; it reads the committed data.


class TorchReplayer:
    """Replays steps with PyTorch on `device`; implements `Replayer`."""

    def __init__(
        self,
        spec: Spec,
        dataset: Dataset,
        plan: BatchPlan,
        device: str | None = None,
        parameters_max: int = PARAMETERS_MAX,
    ) -> None:
        recipe = spec.recipe
        assert recipe is not None  # only a recipe is rebuilt
        self._recipe, self._dataset, self._plan = recipe, dataset, plan
        self._trainer = Trainer(recipe, classes(spec), device, parameters_max)
        self._initial = {name: tensor.copy() for name, tensor in self._trainer.state().items()}
        self._summariser = Summariser(
            recipe.record,
            projection_seed(spec),
            self._trainer.weights(),
            self._trainer.state,
            lambda data: digest("blob", data),
        )

    def initial_state(self) -> Mapping[str, Tensor]:
        """The seeded state before the first step."""
        return self._initial

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        self._trainer.restore(state)

    def step(self, index: int) -> ReplayedStep:
        """Take step `index`; raises `UnavailableError` if the model of the spec does not run."""
        assert index == self._trainer.index + 1
        try:
            seen = self._trainer.step(micro_batches(self._recipe, self._dataset, self._plan.indices(index)))
        except CRASHES as error:
            raise UnavailableError(f"step {index} does not run here: {first_line(error)}") from error
        return ReplayedStep(seen.loss, seen.gradient_norm, seen.activation, self._summariser.after_step(index))

    def state(self) -> Mapping[str, Tensor]:
        """The full current state; shares memory with the live tensors."""
        return self._trainer.state()


# A verifier's stack with PyTorch on this machine. The replayer of step graphs is loaded on first use.

THREADS_MAX: Final = 256
_captured: dict[tuple[bytes, int], Digest] = {}


def torch_verifier_stack(
    stated: Environment, device: str | None = None, parameters_max: int = PARAMETERS_MAX
) -> VerifierStack:
    """PyTorch on `device`; by default the device of the `stated` environment if it is present.

    Sets the number of threads of this process to that of the run, at most 256: sums of floats are split by threads, so
    another number gives other last bits.
    """
    on = device or (stated.device if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(min(stated.threads, THREADS_MAX))

    return VerifierStack(
        describe_environment("cuda" if on.startswith("cuda") else "cpu"),
        lambda spec, dataset, plan: TorchReplayer(spec, dataset, plan, on, parameters_max),
        lambda spec, program: GraphReplayer(spec, program, on, parameters_max),
        recipe_graph_root,
        train_bpe,
        TokenizerFile,
    )


def recipe_graph_root(spec: Spec) -> Digest:
    """The root of the step graph that these libraries capture from the recipe of `spec`.

    It is captured once per process, because the libraries do not change. Raises `UnavailableError` if the step cannot
    be captured.
    """
    assert spec.recipe is not None  # only a recipe is captured anew
    name = spec.recipe.to_bytes(), classes(spec)
    if name not in _captured:
        _captured[name] = graph_root(capture_recipe_step(spec.recipe, classes(spec)).graph)
    return _captured[name]


# The trainer's step on a recipe as one graph.


def capture_recipe_step(recipe: Recipe, vocabulary: int, trail: ModuleTrail = NO_TRAIL) -> CapturedStep:
    """The step of `Trainer` on a recipe; with outputs `activation.mean` and `activation.rms` if they are recorded.

    Its nodes have module paths if a `ModuleTrail` is given.

    Raises `UnavailableError` if the step cannot be captured; where the model drops, with the settings that end it.
    """
    trainer, settings = Trainer(recipe, vocabulary, "cpu"), recipe.training

    def objective(called: Any, examples: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        logits = logits_of(called, dict(examples))
        loss = nn.functional.cross_entropy(logits.float(), labels_of(dict(examples)))
        return loss, logits if recipe.record.activation_checksum else None

    clip_norm = recipe.optimizer.clip_norm
    step = TrainingStep(
        trainer.model, trainer.optimizer, objective, clip_norm, settings.accumulation, precision=trainer.precision
    )
    try:
        return captured_step(step, [_example_batch(recipe, vocabulary)] * step.accumulation, trail)
    except UnavailableError:
        if drops := describe_dropout(trainer.model):
            names = [*config_that_drops(trainer.model)] or [name for name in recipe.model.config if "drop" in name]
            mended = ", ".join(f"{name} = 0" for name in names)
            raise UnavailableError(f"{drops}: to have one, set {mended} in [model.config]") from None
        raise


def _example_batch(recipe: Recipe, vocabulary: int) -> dict[str, torch.Tensor]:
    """A batch with the recipe's shapes and random values."""
    settings, draw = recipe.training, torch.Generator().manual_seed(0)
    if recipe.data.kind == "digits":
        images = torch.rand(settings.batch, 1, 8, 8, generator=draw)
        return {"images": images, "labels": torch.randint(10, (settings.batch,), generator=draw)}
    shape = (settings.batch, settings.sequence)
    return {name: torch.randint(vocabulary, shape, generator=draw) for name in ("inputs", "targets")}
