"""What is opened does not hang together, does not belong to the claim, or is not all there: ruled by structure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from research.attacks.graphs import larger_epsilon
from tallystick.audits.opening import OpeningSource, open_operators, source_of_step
from tallystick.core.canonical_json import encode
from tallystick.core.files import write_atomically
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.evidence.traces import RecordTrace, torch_engine, trace_of
from tallystick.disputes.game.protocols import Descent, Files, OpenedLeaves, Trace
from tallystick.disputes.game.state import Dispute
from tallystick.formats.openings import Opening
from tallystick.formats.store.log import LogWriter, read_lines
from tallystick.verdicts.opening.files import OPENING, OPERATOR, OPERATORS, VALUES
from tallystick.verdicts.verdict import Fault
from tests.support.attacks.disputes.deception import Deception, Staged
from tests.support.attacks.disputes.scene import STEP, Scene
from tests.support.attacks.disputes.values import contested_step, stage_wrong_rate
from tests.support.opened_values import read_values, write_values

Document: TypeAlias = dict[str, Any]
Edit: TypeAlias = Callable[[Path], None]


@dataclass(frozen=True)
class EditedTrace(RecordTrace):
    """A trace whose openings are edited before anything of them is posted."""

    edit: Edit = lambda _: None

    def open(self, subject: OpeningSource, out: Path) -> None:
        """Write the operators, and edit them."""
        super().open(subject, out)
        self.edit(out)


@dataclass(frozen=True)
class OtherSubject(RecordTrace):
    """A trace that opens something else in the place of a record's own step."""

    other: Callable[[OpeningSource], OpeningSource] = lambda subject: subject

    def open(self, subject: OpeningSource, out: Path) -> None:
        """Write the operators of the other step."""
        open_operators(self.other(subject), out, torch_engine())


@dataclass(frozen=True)
class WithholdingTrace:
    """A trace that leaves one value away at the descent or at a cut, or at the leaf the operator itself."""

    honest: Trace
    where: str

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        """The honest leaves, perhaps without a value that crosses a cut."""
        opened = self.honest.partition(dispute, places)
        return replace(opened, files=self._kept(opened.files, "cut"))

    def descend(self, dispute: Dispute) -> Descent | None:
        """The honest operators, perhaps without a value at the ends of the step."""
        descent = self.honest.descend(dispute)
        return None if descent is None else replace(descent, files=self._kept(descent.files, "descent"))

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """The honest leaf, perhaps without the operator."""
        opened = self.honest.reveal(dispute)
        return replace(opened, files=self._kept(opened.files, "leaf"))

    def _kept(self, files: Files, where: str) -> Files:
        left_out = "" if where != self.where else OPERATOR if where == "leaf" else VALUES
        return {name: source for name, source in files.items() if name != left_out}


def stage_withheld(where: str) -> Callable[[Scene, Path], Staged]:
    """One value is not opened."""

    def stage(scene: Scene, folder: Path) -> Staged:
        trace = WithholdingTrace(scene.training_trace(folder / "work"), where)
        return Staged(scene.run, trace, contested_step(scene))

    return stage


def stage_edges(scene: Scene, folder: Path) -> Staged:
    """One operator reads another value than was given; the root is that of the edited records."""

    def edit(out: Path) -> None:
        lines = [json.loads(line) for line in read_lines(out / OPERATORS)]
        line = next(line for line in lines if line["node"] == scene.product.number)
        first, *_ = line["inputs"]
        line["inputs"][first] = next(iter(lines[0]["outputs"].values()))
        rewrite_operators(out, lines)

    return _edited(scene, folder, edit)


def stage_malformed(scene: Scene, folder: Path) -> Staged:
    """A value at the board has other bytes than its name says."""

    def edit(out: Path) -> None:
        opening = Opening.from_bytes((out / OPENING).read_bytes(), OPENING)
        name = opening.results["loss"]
        values = read_values(out)
        write_values(out, values | {name: replace(values[name], data=bytes(values[name].nbytes))})

    return _edited(scene, folder, edit)


def stage_other_step(scene: Scene, folder: Path) -> Staged:
    """The operators of the next step are opened under this one's record."""

    def other(subject: OpeningSource) -> OpeningSource:
        return replace(source_of_step(scene.evidence, STEP + 1), record=subject.record)

    return _with_subject(scene, folder, other)


def stage_other_graph(scene: Scene, folder: Path) -> Staged:
    """The operators of a graph with another ε are opened, and that graph with them."""
    assert scene.evidence.program is not None  # trained with one
    graph = larger_epsilon(scene.evidence.program).graph
    return _with_subject(scene, folder, lambda subject: replace(subject, graph=graph))


def stage_other_rate_shown(scene: Scene, folder: Path) -> Staged:
    """The wrong rate is opened too: honest operators on a schedule that the spec does not give."""
    staged = stage_wrong_rate(scene, folder)
    program = scene.evidence.program
    assert program is not None  # trained with one

    def other(subject: OpeningSource) -> OpeningSource:
        rates = tuple(rate * 1.1 for rate in program.rates(STEP))
        wrong = replace(program, rates=lambda _: rates).schedule(subject.bindings, STEP)
        return replace(subject, bindings={**subject.bindings, **wrong})

    honest = trace_of(statement_at(staged.statement), folder / "shown")
    assert isinstance(honest, RecordTrace)
    trace = OtherSubject(honest.records, folder / "shown", honest.engine, honest.subject, other)
    return Staged(staged.statement, trace)


def stage_honest_instead(scene: Scene, folder: Path) -> Staged:
    """A step was taken at the wrong rate, and an honest one is opened: its results are not those of the record."""
    staged = stage_wrong_rate(scene, folder)
    return Staged(staged.statement, trace_of(statement_at(staged.statement), folder / "honest"))


def rewrite_operators(folder: Path, lines: Sequence[Document]) -> None:
    """Write other operator records, and the opening with their root."""
    path, opening = folder / OPERATORS, Opening.from_bytes((folder / OPENING).read_bytes(), OPENING)
    path.unlink()
    shutil.rmtree(folder / "tiles")
    writer = LogWriter(path)
    for line in lines:
        writer.append(encode(line))
    write_atomically(folder / OPENING, opening.model_copy(update={"operators": writer.close()}).to_bytes())


def _edited(scene: Scene, folder: Path, edit: Edit) -> Staged:
    honest = scene.training_trace(folder / "work")
    trace = EditedTrace(honest.records, honest.work, honest.engine, honest.subject, edit)
    return Staged(scene.run, trace, contested_step(scene))


def _with_subject(scene: Scene, folder: Path, other: Callable[[OpeningSource], OpeningSource]) -> Staged:
    honest = scene.training_trace(folder / "work")
    trace = OtherSubject(honest.records, honest.work, honest.engine, honest.subject, other)
    return Staged(scene.run, trace, contested_step(scene))


def _convicted(name: str, change: str, stage: Callable[[Scene, Path], Staged]) -> Deception:
    return Deception(name, change, stage, "structure", Fault.PROVER, Fault.PROVER)


ATTACKS = (
    _convicted("edges-inconsistent", "an operator reads another value than was given", stage_edges),
    _convicted("value-malformed", "a file at the board is cut short", stage_malformed),
    _convicted("value-withheld-at-the-descent", "a result of the step is not there", stage_withheld("descent")),
    _convicted("value-withheld-at-a-cut", "a value that crosses a cut is not there", stage_withheld("cut")),
    _convicted("another-step", "the operators of the next step are opened", stage_other_step),
    _convicted("another-graph", "the operators of a graph with another ε are opened", stage_other_graph),
    _convicted("wrong-rate-shown", "the wrong rate is opened, which the spec does not give", stage_other_rate_shown),
    _convicted("honest-step-instead", "an honest step is opened for a dishonest record", stage_honest_instead),
    Deception(
        "operator-withheld-at-the-leaf",
        "the operator that is left is not there",
        stage_withheld("leaf"),
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
    ),
)
