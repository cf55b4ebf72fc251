"""Answers of a model that a challenger may overlook: renamed, in few bits, or behind a decoy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from tallystick.audits.calls import Calls
from tallystick.audits.opening import gather_whole
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import FEWER_BITS, State, Tensor
from tallystick.disputes.evidence.rounding import ChangedEngine, products_of, weights_of, with_cheap_node
from tallystick.disputes.evidence.statement import CallsStatement, statement_at
from tallystick.disputes.evidence.traces import torch_engine, trace_of
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.tensors import from_tensor
from tallystick.formats.claims import call_file
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.programs.execution import Arguments, Engine
from tallystick.programs.graph import Graph, Node
from tallystick.recording.inference import record_graph_inference, record_inference
from tallystick.tally.attacks.provers import seal
from tallystick.verdicts.verdict import Fault
from tests.support.attacks.disputes.deception import Deception, Staged
from tests.support.attacks.disputes.engines import Change, ChangingEngine
from tests.support.attacks.disputes.scene import CALL, Scene
from tests.support.attacks.disputes.values import bound_of

SHARE: Final = 0.9
"""Of its bound, by which a decoy is moved."""
WIDE: Final = 1024
"""The width at which a decoy in F32 leaves the tolerance of a challenger 20 times, and no bound."""
TOKENS: Final = 32
Results = tuple[Any, ...]


def stage_renamed(scene: Scene, folder: Path) -> Staged:
    """One call gives noise under a name that no output of the graph has."""
    noise = np.random.default_rng(0).uniform(0, 1, (2, 6, TOKENS)).astype(np.float32)
    return with_outputs(scene.calls, folder, {CALL: {"answer": Tensor.of(noise)}})


def stage_short(scene: Scene, folder: Path) -> Staged:
    """A model in BF16, and one call gives the outputs of the other in another order."""
    import torch

    record(layers(16).to(torch.bfloat16), folder / "honest")
    calls = gather_whole(InferenceDirectory(folder / "honest"))
    mixed = {name: _reversed(tensor) for name, tensor in calls.outputs(calls.records[CALL - 1]).items()}
    return with_outputs(folder / "honest", folder, {CALL: mixed})


def stage_decoy(scene: Scene, folder: Path) -> Staged:
    """One layer is wrong by a fifth; one before it is a decoy, further off than any kernel and within its bound."""
    record(layers(WIDE), folder / "honest")
    calls = gather_whole(InferenceDirectory(folder / "honest"))
    decoy, wrong = (node.number for node in calls.graph.nodes if "linear" in node.operator)
    changes: dict[int, Change] = {decoy: within_bound, wrong: _larger}
    return answered(calls, folder, ChangingEngine(lambda node: changes.get(node.number)))


def stage_whole_number(scene: Scene, folder: Path) -> Staged:
    """One of 128 whole numbers is out of range, so that the operator behind it is not defined there."""
    record(_counting(), folder / "honest", (2, 64))
    return answered(gather_whole(InferenceDirectory(folder / "honest")), folder, ClampingEngine())


def stage_cheap_layer(name: str, place: int, scene: Scene, folder: Path) -> Staged:
    """One linear layer of a model in F32 is computed in fewer bits; its operator is opened as it was computed."""
    record(layers(48), folder / "honest")
    calls = gather_whole(InferenceDirectory(folder / "honest"))
    return answered(calls, folder, cheap_engine(calls.graph, name, place))


def cheap_engine(graph: Graph, name: str, place: int) -> ChangedEngine:
    """PyTorch, but the matrix product at `place` among those of a graph is computed in the format `name`."""
    node = products_of(graph)[place]
    rounded = frozenset(node.refs) & weights_of(graph) if name.startswith("int") else frozenset(node.refs)
    return with_cheap_node(torch_engine(), node.number, FEWER_BITS[name], graph.specs(), rounded)


class ClampingEngine(TorchEngine):
    """PyTorch, but the first whole number that is added to is far too large, and embeddings take the nearest row."""

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], Results]:
        """The honest kernel with a change before or behind it."""
        run = super().prepare(node, differentiable)
        if node.operator == "aten.add.Scalar":
            return lambda arguments: (_out_of_range(*run(arguments)),)
        if node.operator == "aten.embedding.default":
            return lambda arguments: run({**arguments, "indices": arguments["indices"].clamp(max=TOKENS)})
        return run


def within_bound(node: Node, arguments: Arguments, results: Results) -> Results:
    """Every element is moved up by most of its bound."""
    found = bound_of(node, arguments)
    moved = from_tensor(Tensor.of(found.value + SHARE * found.radius))
    return (moved.to(results[0].dtype).reshape(results[0].shape),)


def record(model: Any, out: Path, shape: tuple[int, ...] = (2, 6), calls: int = CALL) -> None:
    """Record calls of a model on tokens."""
    import torch

    generator = np.random.default_rng(5)
    with torch.no_grad(), record_inference(model.eval(), out):
        for _ in range(calls):
            model(torch.from_numpy(generator.integers(0, TOKENS, shape)))


def answered(calls: Calls, folder: Path, engine: Engine) -> Staged:
    """The calls as an engine answers them, which opens its operators too."""
    given = [calls.inputs(each) for each in calls.records]
    record_graph_inference(calls.graph, calls.constants, calls.weights(), given, engine, folder / "calls")
    return Staged(
        folder / "calls", trace_of(CallsStatement(InferenceDirectory(folder / "calls")), folder / "work", engine)
    )


def with_outputs(run: Path, folder: Path, outputs: Mapping[int, State]) -> Staged:
    """Some calls with other outputs; the operators that are opened are honest."""
    forged = InferenceDirectory(folder / "calls")
    shutil.copytree(run, forged.path)
    for number, state in outputs.items():
        write_state(forged.path / call_file(number, "outputs"), state)
    seal(forged, gather_whole(InferenceDirectory(run)))
    return Staged(forged.path, trace_of(statement_at(forged.path), folder / "work"))


def layers(width: int) -> Any:
    """An embedding, and two linear layers with normalisation between them."""
    import torch

    torch.manual_seed(3)
    parts = (torch.nn.Embedding(TOKENS, width), torch.nn.Linear(width, width), torch.nn.LayerNorm(width))
    return torch.nn.Sequential(*parts, torch.nn.GELU(), torch.nn.Linear(width, TOKENS))


def _counting() -> Any:
    """Tokens are counted from one, embedded, and taken through a layer."""
    import torch

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(TOKENS + 1, 8)
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, tokens: Any) -> Any:
            return torch.softmax(self.layer(self.embedding(tokens + 1)), dim=-1)

    torch.manual_seed(3)
    return Counting()


def _larger(_: Node, __: Arguments, results: Results) -> Results:
    return (1.2 * results[0],)


def _out_of_range(numbers: Any) -> Any:
    moved = numbers.clone()
    moved.view(-1)[0] = 10**6
    return moved


def _reversed(tensor: Tensor) -> Tensor:
    values = tensor.array()
    return Tensor.of(values.reshape(-1)[::-1].reshape(values.shape).copy(), tensor.dtype)


ATTACKS = (
    Deception(
        "answer-renamed",
        "a call gives noise under another name than the graph's output",
        stage_renamed,
        "structure",
        Fault.PROVER,
        Fault.PROVER,
    ),
    Deception(
        "short-floats-mixed",
        "a model in BF16 gives its answers in another order",
        stage_short,
        "structure",
        Fault.PROVER,
        Fault.PROVER,
    ),
    Deception(
        "decoy",
        "a layer is off by a fifth; one before it leaves the challenger's tolerance and keeps within its bound",
        stage_decoy,
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
        "n4 (aten.linear.default)",
    ),
    Deception(
        "whole-number",
        "one whole number of 128 is out of range, and the embedding behind it takes the last row",
        stage_whole_number,
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
        "aten.add.Scalar",
    ),
    *(
        Deception(
            f"{'last' if place else 'first'}-layer-in-{name.split()[0].lower()}",
            f"the {'last' if place else 'first'} linear layer of a model in F32 is computed in {name}",
            partial(stage_cheap_layer, name, place),
            "leaf",
            Fault.PROVER,
            Fault.PROVER,
            "aten.linear.default",
        )
        for name in ("BF16", "F16", "int8 by row")
        for place in (0, -1)
    ),
)
