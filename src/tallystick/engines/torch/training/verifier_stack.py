"""A verifier's stack with PyTorch on this machine: its trainer, and the replayer of step graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.tokenizers import TokenizerFile, train_bpe
from tallystick.engines.torch.engine import PreparedGraph, TorchEngine
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.tensors import DTYPES, check_names, from_tensor, to_tensor
from tallystick.engines.torch.training.recipe_step import capture_recipe_step
from tallystick.engines.torch.training.trainer import CRASHES, PARAMETERS_MAX, Summariser, Trainer, first_line
from tallystick.formats.data.samples import BatchPlan, Dataset
from tallystick.formats.data.step_program import StepProgram, classes, micro_batches, projection_seed
from tallystick.formats.data.tokenizer import Tokenizer
from tallystick.formats.spec import Environment, Spec
from tallystick.programs.encoding import graph_root
from tallystick.programs.graph import Graph, Input
from tallystick.programs.step_names import POSITION, UPDATED, parameter_of
from tallystick.verdicts.replayer import ReplayedStep, Replayer, VerifierStack

if TYPE_CHECKING:
    from tallystick.formats.data.tokenizer import Encoder


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
        _check_size(self._inputs, parameters_max)
        self._prepared = PreparedPrograms(TorchEngine(device))
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
        run, constants = self._prepared.of(program)
        state = {name: self._live[name] for name in program.state_names}
        results = run({**constants} | state | self._fed(program, index))
        observed = {name: float(results[name]) for name in OBSERVED & results.keys()}
        self._take({name: results[name] for name in program.state_names})
        return ReplayedStep(
            observed["loss"], observed.get("gradient_norm"), _activation(observed), self._summariser.after_step(index)
        )

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

    @torch.no_grad()
    def _take(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            self._live[name].copy_(value)

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


Prepared = tuple[PreparedGraph, Mapping[str, torch.Tensor]]


class PreparedPrograms:
    """The graphs of a run made ready for an engine, with their constants; those used last are kept."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine, self._kept = engine, dict[int, tuple[Graph, Prepared]]()

    def of(self, program: StepProgram) -> Prepared:
        """The graph of `program` without its gradients, which writes over the state, and its constants."""
        graph = program.graph
        found = self._kept.pop(id(graph), None) or (graph, self._made(program))
        self._kept[id(graph)] = found  # held with its graph, so that no other graph has this identity
        while len(self._kept) > PREPARED_MAX:
            del self._kept[next(iter(self._kept))]
        return found[1]

    def _made(self, program: StepProgram) -> Prepared:
        run = self._engine.compile(without_gradients(program.graph), consumed=program.state_names)
        return run, {each.name: self._engine.load(program.constants[each.name]) for each in program.graph.constants}


def _check_size(inputs: Mapping[str, Input], parameters_max: int) -> None:
    count = sum(each.spec.size for name, each in inputs.items() if name.startswith("weights."))
    if count > parameters_max:
        raise UnavailableError(f"the model has {count} parameters, more than the {parameters_max} allowed")


def without_gradients(graph: Graph) -> Graph:
    """The graph without the outputs that no later step reads, so that they are freed after their last use."""
    return replace(graph, outputs=tuple(each for each in graph.outputs if not each.name.startswith(SHOWN)))


def _activation(observed: Mapping[str, float]) -> tuple[float, float] | None:
    if "activation.mean" not in observed:
        return None
    return observed["activation.mean"], observed["activation.rms"]


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

    def graph_replayer(spec: Spec, program: StepProgram) -> Replayer:

        return GraphReplayer(spec, program, on, parameters_max)

    return VerifierStack(
        describe_environment("cuda" if on.startswith("cuda") else "cpu"),
        lambda spec, dataset, plan: TorchReplayer(spec, dataset, plan, on, parameters_max),
        graph_replayer,
        recipe_graph_root,
        _train_bpe,
        _read_encoder,
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


def _read_encoder(content: bytes, end: str) -> Encoder:
    return TokenizerFile(content, end)


def _train_bpe(text: str, vocabulary: int) -> Tokenizer:
    return train_bpe(text, vocabulary)
