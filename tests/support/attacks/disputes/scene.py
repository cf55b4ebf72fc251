"""The honest run and the honest calls that dishonest provers of disputes start from; small enough for seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from tallystick.audits.calls import Calls
from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.opening import gather_whole
from tallystick.disputes.evidence.statement import CallsStatement
from tallystick.disputes.evidence.traces import RecordTrace, trace_of
from tallystick.disputes.evidence.training import TrainingStatement
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.execution import Engine
from tallystick.programs.graph import Graph, Node
from tallystick.tally.attacks.forging import place_of_step, read_records
from tests.support.attacks.reference import RECIPE, train_by

STEP: Final = 5
"""The step that is disputed: not the first behind its anchor, and not the last before the next one."""
CALL: Final = 2
WEIGHT: Final = "weights.second.weight"
TRAINED: Final[dict[str, Any]] = RECIPE | {
    "model": RECIPE["model"] | {"config": RECIPE["model"]["config"] | {"hidden_size": 16, "num_hidden_layers": 1}},
    "training": RECIPE["training"] | {"steps": 6, "batch": 2, "sequence": 8},
    "record": {"anchor_stride": 3, "summaries": ["projection"]},
}


@dataclass(frozen=True)
class Scene:
    """An honest training with a step graph in `run`, honest calls of a model in `calls`."""

    run: Path
    calls: Path

    @classmethod
    def make(cls, folder: Path) -> Scene:
        """Train and record under `folder`."""
        train_by(TRAINED, folder / "run")
        record_calls(folder / "calls")
        return cls(folder / "run", folder / "calls")

    @cached_property
    def evidence(self) -> CheckedRun:
        """The run, rechecked."""
        return gather_whole(RunDirectory(self.run))

    @cached_property
    def recorded(self) -> Calls:
        """The calls, rechecked."""
        return gather_whole(InferenceDirectory(self.calls))

    @property
    def graph(self) -> Graph:
        """The step graph."""
        assert self.evidence.program is not None  # trained with one
        return self.evidence.program.graph

    @property
    def product(self) -> Node:
        """A matrix product in the middle of the step."""
        products = [node for node in self.graph.nodes if node.operator == "aten.mm.default"]
        return products[len(products) // 2]

    @property
    def place(self) -> int:
        """Where the disputed step stands among the records."""
        return place_of_step(read_records(RunDirectory(self.run)), STEP)

    def training_trace(self, work: Path, engine: Engine | None = None) -> RecordTrace:
        """A trace of the run whose openings `engine` computes."""
        trace = trace_of(TrainingStatement(RunDirectory(self.run)), work, engine)
        assert isinstance(trace, RecordTrace)
        return trace

    def call_trace(self, work: Path, engine: Engine | None = None) -> RecordTrace:
        """A trace of the calls whose openings `engine` computes."""
        trace = trace_of(CallsStatement(InferenceDirectory(self.calls)), work, engine)
        assert isinstance(trace, RecordTrace)
        return trace


def record_calls(out: Path, calls: int = 3) -> None:
    """Record calls of a small network: embedding, two linear layers with normalisation between them, softmax."""
    import torch

    from tallystick.recording.inference import record_inference

    torch.manual_seed(3)
    model = _network(torch)
    generator = np.random.default_rng(5)
    with torch.no_grad(), record_inference(model, out):
        for _ in range(calls):
            model(torch.from_numpy(generator.integers(0, 32, (2, 6))))


def _network(torch: Any) -> Any:
    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(32, 16)
            self.first = torch.nn.Linear(16, 48)
            self.norm = torch.nn.LayerNorm(48)
            self.second = torch.nn.Linear(48, 32)

        def forward(self, tokens: Any) -> Any:
            hidden = self.norm(torch.nn.functional.gelu(self.first(self.embedding(tokens))))
            return torch.softmax(self.second(hidden), dim=-1)

    return Network().eval()
