"""Replays a run from its step graph; it runs no code of the prover and builds no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from tallystick.commitments.digests import digest
from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.dtypes import DTYPES
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.models import PARAMETERS_MAX
from tallystick.frameworks.torch.state import check_names
from tallystick.frameworks.torch.tensors import from_tensor, to_tensor
from tallystick.frameworks.torch.training.summaries import Summariser
from tallystick.frameworks.torch.training.trainer import Trainer
from tallystick.graphs.graph import Graph, Input
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.spec import Spec
from tallystick.workloads.names import POSITION
from tallystick.workloads.plan import classes, projection_seed
from tallystick.workloads.program import StepProgram
from tallystick.workloads.replayer import ReplayedStep

OBSERVED = frozenset({"loss", "gradient_norm", "activation.mean", "activation.rms"})
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
        engine = TorchEngine(device)
        self._run = engine.compile(without_gradients(program.graph), consumed=program.state_names)
        self._constants = {each.name: engine.load(program.constants[each.name]) for each in program.graph.constants}
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
        check_names(expected=self._inputs.keys(), found=state.keys() - self._carried.keys())
        for name, each in self._inputs.items():
            if TensorSpec.of(state[name]) != each.spec:
                raise MalformedError(f"anchor: {name} is {TensorSpec.of(state[name])}, not {each.spec}")
        self._take({name: from_tensor(state[name]) for name in self._inputs})

    def step(self, index: int) -> ReplayedStep:
        """Take step `index`; raises `UnavailableError` if its batch does not fit the graph or a kernel fails."""
        assert index == int(self._live[POSITION]) + 1
        results = self._run(self._values(index))
        observed = {name: float(results[name]) for name in OBSERVED & results.keys()}
        self._take({name: results[name] for name in self._inputs})
        return ReplayedStep(
            observed["loss"], observed.get("gradient_norm"), _activation(observed), self._summariser.after_step(index)
        )

    @property
    def carried(self) -> Mapping[str, Tensor]:
        """The tensors of the state that no step reads or writes."""
        return self._carried

    def bindings(self, index: int) -> dict[str, Tensor]:
        """All tensors that step `index` reads, with the current state; raises what `step` raises."""
        try:
            return self._program.bindings(self._graph_state(), index)
        except MalformedError as error:
            raise UnavailableError(str(error)) from None

    def state(self) -> Mapping[str, Tensor]:
        """The full current state; shares memory with the live tensors."""
        return self._graph_state() | self._carried

    def _graph_state(self) -> dict[str, Tensor]:
        return {name: to_tensor(value) for name, value in self._live.items()}

    def _values(self, index: int) -> dict[str, torch.Tensor]:
        given = self.bindings(index)
        fresh = given.keys() - self._live.keys() - self._constants.keys()
        loaded = {name: from_tensor(given[name]).to(self._device) for name in fresh}
        return self._constants | self._live | loaded

    @torch.no_grad()
    def _take(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, live in self._live.items():
            live.copy_(values[name])


def _check_size(inputs: Mapping[str, Input], parameters_max: int) -> None:
    count = sum(each.spec.size for name, each in inputs.items() if name.startswith("weights."))
    if count > parameters_max:
        raise UnavailableError(f"the model has {count} parameters, more than the {parameters_max} allowed")


def without_gradients(graph: Graph) -> Graph:
    """The graph without the outputs `gradients.…`, so that gradients are freed after their last use."""
    return replace(graph, outputs=tuple(each for each in graph.outputs if not each.name.startswith("gradients.")))


def _activation(observed: Mapping[str, float]) -> tuple[float, float] | None:
    if "activation.mean" not in observed:
        return None
    return observed["activation.mean"], observed["activation.rms"]
