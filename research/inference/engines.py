"""A language model as one place runs it: by PyTorch, compiled, or as a captured graph on JAX or IREE."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from research.inference.stacks import place_named
from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import State, Tensor
from tallystick.engines import iree as programs
from tallystick.engines.iree import IreeEngine, run_compiled
from tallystick.engines.jax.emission import Signature
from tallystick.engines.jax.engine import JaxEngine, computation
from tallystick.engines.torch.generation.language_models import GraphLanguageModel, captured_passes, load_language_model
from tallystick.programs.execution import Run, execute
from tallystick.programs.graph import Graph
from tallystick.verdicts.language_model import Prefill

IREE_TARGETS: Final[Mapping[str, tuple[str, str]]] = {
    "iree host": ("llvm-cpu", "--iree-llvmcpu-target-cpu=host"),
    "iree vmvx": ("vmvx", ""),
}


@cache
def verifier_on(name: str, model: Path, dtype: Any) -> Any:
    """The model in the directory `model` as the place `name` runs it; raises `UnavailableError` where it cannot."""
    place = place_named(name)
    loaded = load_language_model(model, dtype, place.stack.attention, place.stack.device)
    if place.engine == "native":
        return loaded
    if place.engine == "inductor":
        return CompiledModel(loaded)
    engine, run = _engine(place.engine)
    return GraphLanguageModel(loaded, captured_passes(loaded), engine, run)


class CompiledModel:
    """A language model whose pass is compiled by inductor; it has no states of the last block ahead of the norm."""

    def __init__(self, source: Any) -> None:
        import torch

        self.source = source
        self._pass = torch.compile(
            lambda ids: source.model(input_ids=ids, use_cache=False, output_hidden_states=True), dynamic=False
        )

    def prefill(self, tokens: Sequence[int], first: int, layers: Collection[int] = ()) -> Prefill:
        """One pass over `tokens`; raises `UnavailableError` for the last block."""
        import torch

        count = self.source.card.layers
        if count - 1 in layers:
            raise UnavailableError(f"layer {count - 1}: the compiled pass gives only its norm")
        with torch.inference_mode():
            found = self._pass(torch.tensor([list(tokens)]))
        states = {layer: found.hidden_states[layer + 1 if layer < count else count] for layer in layers}
        hidden = {layer: each[0, first:].float().numpy() for layer, each in states.items()}
        return Prefill(first, found.logits[0, first:].float().numpy(), hidden)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


@dataclass(frozen=True)
class OneProgram:
    """A graph traced as a whole, so that XLA fuses as it likes; each graph is compiled once."""

    programs: dict[int, Any]

    def run(self, graph: Graph, bindings: State, engine: Any) -> dict[str, Tensor]:
        """The outputs of `graph`, as `execute` gives them."""
        import jax

        if id(graph.nodes) not in self.programs:
            self.programs[id(graph.nodes)] = graph.nodes, jax.jit(_traced(graph))
        _, program = self.programs[id(graph.nodes)]
        with jax.enable_x64(True):
            arrays = {source.name: engine.load(bindings[source.name]) for source in graph.sources}
            found = program(arrays)
        specs = graph.specs()
        return {each.name: engine.unload(found[each.name], specs[each.value].dtype) for each in graph.outputs}


def _traced(graph: Graph) -> Any:
    """A graph as a function of arrays by name, every operator by its definition."""
    specs = graph.specs()

    def compute(arrays: Mapping[str, Any]) -> dict[str, Any]:
        held = dict(arrays)
        for node in graph.nodes:
            signature = Signature(node, tuple(specs[ref] for ref in node.refs))
            results = computation(signature)(*(held[ref] for ref in node.refs))
            given = [ref for ref in node.outputs if ref is not None]
            held.update(zip(given, results, strict=True))
        return {each.name: held[each.value] for each in graph.outputs}

    return compute


def _without_jit(graph: Graph, bindings: State, engine: Any) -> dict[str, Tensor]:
    import jax

    with jax.disable_jit():
        return execute(graph, bindings, engine)


def _engine(name: str) -> tuple[Any, Run]:
    if name.startswith("iree"):
        return _iree(name)
    runs: dict[str, Run] = {"jax": OneProgram({}).run, "jax operators": execute, "jax eager": _without_jit}
    return JaxEngine(), runs[name]


def _iree(name: str) -> tuple[Any, Run]:
    if name in IREE_TARGETS:
        target, flag = IREE_TARGETS[name]
        flags = tuple(each for each in (flag, *programs.FLAGS[1:]) if each)
        vars(programs).update(TARGET=target, FLAGS=flags)
    return IreeEngine(), run_compiled


__all__ = ["CompiledModel", "verifier_on"]
