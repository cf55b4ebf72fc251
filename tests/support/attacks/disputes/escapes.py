"""The prover steps out of the way of the check: a second graph with the last answer, or a tree without a choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tallystick.audits.opening import OpeningSource
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.evidence.traces import RecordTrace, trace_of
from tallystick.disputes.game.protocols import Descent, Files, OpenedLeaves, Trace
from tallystick.disputes.game.state import Dispute
from tallystick.formats.openings import Opening
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import load_program, save_program
from tallystick.programs.graph import Graph, Node, Output
from tallystick.programs.step_names import BATCH
from tallystick.tally.attacks.provers import forge_swapped_layer
from tallystick.verdicts.leaf.bundling import WholeOpening
from tallystick.verdicts.opening.files import GRAPH, OPENING, OPERATOR
from tallystick.verdicts.verdict import Fault
from tests.support.attacks.disputes.deception import Deception, Staged
from tests.support.attacks.disputes.openings import OtherSubject
from tests.support.attacks.disputes.scene import WEIGHT, Scene
from tests.support.attacks.disputes.values import practised, stage_wrong_attribute


@dataclass(frozen=True)
class SecondOpening:
    """A trace that brings another graph, in which its operators are right, with the last operator."""

    honest: Trace
    folder: Path
    graph: Graph

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        """The leaves as they are."""
        return self.honest.partition(dispute, places)

    def descend(self, dispute: Dispute) -> Descent | None:
        """The right graph; the other one is prepared."""
        descent = self.honest.descend(dispute)
        if descent is not None:
            self._prepare(descent.files)
        return descent

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """The operator as the other graph has it, and that graph."""
        shown = WholeOpening.read(self.folder).bundle(self.graph.nodes[dispute.low].number).operator
        second = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        opened = self.honest.reveal(dispute)
        return replace(opened, files={**opened.files, **second, OPERATOR: shown.to_bytes()})

    def _prepare(self, files: Files) -> None:
        self.folder.mkdir()
        for name, source in files.items():
            if "/" not in name:
                (self.folder / name).write_bytes(source if isinstance(source, bytes) else source.read_bytes())
        _, constants = load_program(self.folder / GRAPH)
        save_program(self.folder / GRAPH, self.graph, constants)
        opening = Opening.from_bytes((self.folder / OPENING).read_bytes(), OPENING)
        (self.folder / OPENING).write_bytes(opening.model_copy(update={"graph": graph_root(self.graph)}).to_bytes())


def stage_second_opening(scene: Scene, folder: Path) -> Staged:
    """As `wrong-attribute`, but for a second opening whose graph has that attribute."""
    staged, other = stage_wrong_attribute(scene, folder), practised(scene.graph)
    nodes = tuple(other.get(node.number, node) for node in scene.graph.nodes)
    return replace(staged, trace=SecondOpening(staged.trace, folder / "second", replace(scene.graph, nodes=nodes)))


def stage_one_operator(scene: Scene, folder: Path) -> Staged:
    """Answers with one layer rounded to 4 bits; under them a graph of one operator, over which there is no choice."""
    forge_swapped_layer(scene.calls, folder / "calls", WEIGHT)
    honest = trace_of(statement_at(folder / "calls"), folder / "work")
    assert isinstance(honest, RecordTrace)  # of calls
    trace = OtherSubject(honest.records, honest.work, honest.engine, honest.subject, with_one_operator)
    return Staged(folder / "calls", trace)


def with_one_operator(subject: OpeningSource) -> OpeningSource:
    """A step that adds nothing to its batch, and is right about that."""
    inputs = tuple(each for each in subject.graph.inputs if each.name.startswith(BATCH))
    attributes = {"other": 0, "alpha": 1}
    node = Node(0, "aten.add.Scalar", {"self": inputs[0].name}, attributes, (inputs[0].spec,))
    graph = replace(subject.graph, inputs=inputs, constants=(), nodes=(node,), outputs=(Output("out", "n0"),))
    return replace(subject, graph=graph, bindings={each.name: subject.bindings[each.name] for each in inputs}, rest={})


ATTACKS = (
    Deception(
        "second-opening",
        "as wrong-attribute; with the last operator comes a second graph in which it is right",
        stage_second_opening,
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
    ),
    Deception(
        "one-operator",
        "one layer is rounded to 4 bits; what is opened is a graph of one operator",
        stage_one_operator,
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
    ),
)
