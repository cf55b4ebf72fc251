"""The honest run whose step is opened, and what forgers of its openings have in common."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.opening import OpeningSource, gather_evidence, open_operators
from tallystick.audits.policy import Policy
from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, digest_from, leaf_hash, tree_root
from tallystick.core.errors import UsageError
from tallystick.core.files import write_atomically
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.training.verifier_stack import GraphReplayer
from tallystick.formats.claims import Log
from tallystick.formats.data.step_program import StepProgram
from tallystick.formats.openings import Opening, state_digest_of
from tallystick.formats.records import StateSummary, StepRecord
from tallystick.formats.store.log import LogWriter, open_line
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.execution import Arguments
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.step_names import STATE_PREFIXES
from tallystick.tally.attacks.forging import place_of_step, read_records
from tallystick.verdicts.exact import quantise
from tallystick.verdicts.opening.files import OpenedValues
from tests.support.attacks.reference import RECIPE, train_by

STEP = 2
DECIMALS = 4
OPENED: dict[str, Any] = RECIPE | {
    "model": RECIPE["model"] | {"config": RECIPE["model"]["config"] | {"hidden_size": 16, "num_hidden_layers": 1}},
    "training": RECIPE["training"] | {"steps": 4, "batch": 2, "sequence": 8},
    "record": {"anchor_stride": 2, "summaries": ["exact"]},
}
CLAIM, SPEC = "claim.json", "spec.json"
Change: TypeAlias = Callable[[Node, Arguments, tuple[Any, ...]], tuple[Any, ...]]
Document: TypeAlias = dict[str, Any]


def train_opened(out: Path) -> None:
    """Train the run whose step is opened: it records the digest of every state."""
    train_by(OPENED, out)


class TamperingEngine(TorchEngine):
    """PyTorch, but for the results of one node; it may give itself another name."""

    def __init__(self, number: int, change: Change, name: str = "torch") -> None:
        super().__init__()
        self._name, self._number, self._change = name, number, change

    @property
    def name(self) -> str:
        """What it says it is."""
        return self._name

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """The honest kernel, or the honest kernel with a change behind it."""
        run = super().prepare(node, differentiable)
        if node.number != self._number:
            return run
        return lambda arguments: self._change(node, arguments, run(arguments))


@dataclass(frozen=True)
class Scene:
    """An honest run with a step graph, one step of it opened as a whole, and one operator of that opened alone."""

    run: Path
    whole: Path
    single: Path

    @classmethod
    def of(cls, run: Path, folder: Path) -> Scene:
        """Open the step of a run under `folder`."""
        scene = cls(run, folder / "whole", folder / "single")
        scene.open(scene.whole)
        scene.open(scene.single, node=scene.product.number)
        return scene

    @cached_property
    def evidence(self) -> CheckedRun:
        """The run, rechecked."""
        return gather_evidence(RunDirectory(self.run), Policy())

    @property
    def program(self) -> StepProgram:
        """The step graph of the run; raises `UsageError` where it has none."""
        if self.evidence.program is None:
            raise UsageError(f"{self.run}: the run has no step graph; its steps have no operators to open")
        return self.evidence.program

    @property
    def product(self) -> Node:
        """A matrix product in the middle of the step."""
        products = [node for node in self.program.graph.nodes if node.operator == "aten.mm.default"]
        return products[len(products) // 2]

    @property
    def update(self) -> Node:
        """The last operator that an optimizer applies to a weight."""
        graph = self.program.graph
        updated = {output.value for output in graph.outputs if output.name.startswith("weights.")}
        return next(node for node in graph.nodes if node.outputs[0] in updated)

    @property
    def cosine(self) -> Node:
        """An operator that is known to lie outside its bound on some engine."""
        return next(node for node in self.program.graph.nodes if node.operator == "aten.cos.default")

    @property
    def transposition(self) -> Node:
        """An operator that moves numbers and computes none."""
        return next(node for node in self.program.graph.nodes if node.operator == "aten.t.default")

    def bindings(self, step: int = STEP) -> dict[Ref, Tensor]:
        """Everything that a step reads."""
        return dict(self._before(step).bindings(step))

    def open(
        self,
        out: Path,
        *,
        step: int = STEP,
        node: int | None = None,
        graph: Graph | None = None,
        engine: TorchEngine | None = None,
        bindings: Mapping[Ref, Tensor] | None = None,
    ) -> None:
        """Open a step, honestly unless told otherwise; claim and spec of the run are laid beside it."""
        run, log = RunDirectory(self.run), self.evidence.claim.transcript
        record = open_line(run.transcript_path, place_of_step(read_records(run), step), log.size)
        carried = self._before(step).carried
        read, chosen = bindings or self.bindings(step), graph or self.program.graph
        subject = OpeningSource(self.evidence.claim.identity, log, record, chosen, read, carried)
        open_operators(subject, out, engine or TorchEngine(), node)
        shutil.copy(run.claim_path, out / CLAIM)
        shutil.copy(run.spec_path, out / SPEC)

    def copy(self, out: Path) -> None:
        """A copy of the honest opening to work on."""
        shutil.copytree(self.whole, out)

    def _before(self, step: int) -> GraphReplayer:
        start = max(anchor for anchor in self.evidence.anchors if anchor < step)
        replayer = GraphReplayer(self.evidence.spec, self.program)
        replayer.restore(self.evidence.state(start))
        for index in range(start + 1, step):
            replayer.step(index)
        return replayer


def read_opening(folder: Path) -> Opening:
    """The head of an opening."""
    return Opening.from_bytes((folder / "opening.json").read_bytes(), "opening.json")


def loss_of(folder: Path) -> float | str:
    """The loss that the opened operators give, as a record states it."""
    name = read_opening(folder).results["loss"]
    return quantise(float(OpenedValues(folder)[name].values()), DECIMALS)


def write_opening(folder: Path, opening: Opening) -> None:
    """Put another head in its place."""
    write_atomically(folder / "opening.json", opening.to_bytes())


def recommit(scene: Scene, folder: Path, *, claims: bool = True, **shown: object) -> None:
    """Let the record say what was opened, in a transcript of its own, and let the forger's claim name that transcript.

    `shown` is what else the record says. Without `claims` the opening goes on naming the honest claim.
    """
    opening = read_opening(folder)
    record = opening.opened_record()
    assert isinstance(record, StepRecord)  # the openings here are those of a step
    before, after = _state(opening.sources, opening.rest_before), _state(opening.results, opening.rest_after)
    states = {"pre": StateSummary(exact=before), "post": StateSummary(exact=after)}
    line = record.model_copy(update=states | shown).to_bytes()
    log = Log(root=digest_from(tree_root([leaf_hash(line)])), size=1)
    claim = scene.evidence.claim.model_copy(update={"transcript": log} if claims else {})
    write_atomically(folder / CLAIM, claim.to_bytes())
    changes = {"claim": claim.identity, "transcript": log, "index": 0, "record": line.decode(), "proof": ()}
    write_opening(folder, opening.model_copy(update=changes))


def edit_records(folder: Path, edit: Callable[[list[Document]], list[Document]]) -> None:
    """Rewrite the operator records under a root of their own."""
    path = folder / "operators.jsonl"
    lines = edit([json.loads(line) for line in path.read_bytes().splitlines()])
    path.write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    shutil.rmtree(folder / "tiles", ignore_errors=True)
    log = LogWriter(path).close()
    write_opening(folder, read_opening(folder).model_copy(update={"operators": log}))


def _state(entries: Mapping[str, Digest], rest: Mapping[str, Digest]) -> Digest:
    held = {name: found for name, found in entries.items() if name.startswith(STATE_PREFIXES)}
    return state_digest_of({**held, **rest})
