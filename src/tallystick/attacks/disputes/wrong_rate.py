"""Steps of a training are taken at a wrong learning rate; records, anchors and claim are consistent.

In a dispute the forger opens the right schedule, because the spec fixes it. But the operators that read it compute with
the wrong rate. There its numbers first differ from the right ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallystick.attacks.dishonest import Batches, DishonestTrainer, train_on
from tallystick.attacks.disputes.dishonest import SubstitutingEngine
from tallystick.attacks.forging import find_scene, read_records
from tallystick.attacks.wrong_recipe import RATE_EXCESS, with_optimizer
from tallystick.audits.checked_run import CheckedRun
from tallystick.disputes.evidence.gathering import gather_whole
from tallystick.disputes.evidence.opening_sources import graph_replayer
from tallystick.disputes.evidence.traces import RecordTrace, TrainingSource, records_of, torch_engine
from tallystick.errors import UsageError
from tallystick.frameworks.torch.training.trainer import Observation
from tallystick.recorders.step_opening import OpeningSource, open_operators
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import AnchorRecord, StepRecord, read_record
from tallystick.transcripts.spec import Spec

if TYPE_CHECKING:
    from tallystick.disputes.game.protocols import Trace

RATE_FACTOR: Final = 1.1


class OneStepTrainer(DishonestTrainer):
    """Takes one step at a learning rate that is `factor` times the declared one, and reports the declared one."""

    def __init__(self, spec: Spec, step: int, factor: float) -> None:
        super().__init__(spec)
        self._step = step
        self._wrong = with_optimizer(self.declared, learning_rate=self.declared.optimizer.learning_rate * factor)

    def step(self, micro_batches: Batches) -> Observation:
        """One step, at the declared rate or the wrong one."""
        self.recipe = self._wrong if self.index + 1 == self._step else self.declared
        return super().step(micro_batches)


def forge_wrong_rate(run: Path, out: Path, step: int, factor: float = RATE_FACTOR) -> None:
    """Continue from the anchor before `step`, take this step at `factor` times the rate, and publish the run.

    Raises `UsageError` if the run has no such step.
    """
    directory = RunDirectory(run)
    marks = [record.index for record in read_records(directory) if isinstance(record, AnchorRecord)]
    if not 1 <= step <= max(marks):
        raise UsageError(f"{run}: has no step {step}")
    anchor = max(mark for mark in marks if mark < step)
    train_on(run, out, anchor, OneStepTrainer(directory.spec(), step, factor))


def wrong_rate_trace(run: Path, work: Path, step: int, factor: float = RATE_FACTOR) -> Trace:
    """The trace of a forged run: the right schedule is opened, and the operators compute with the wrong one."""
    return _trace(RunDirectory(run), work, range(step, step + 1), factor)


def higher_rate_trace(run: Path, work: Path) -> Trace:
    """As `wrong_rate_trace`, of a run that `tally attack wrong-rate` forged: all steps of its second half are wrong."""
    directory = RunDirectory(run)
    scene = find_scene(directory)
    return _trace(directory, work, range(scene.middle + 1, scene.last + 1), RATE_EXCESS)


def _trace(directory: RunDirectory, work: Path, steps: range, factor: float) -> Trace:
    gather = partial(gather_whole, directory)
    source = TrainingSource(gather, lambda evidence: graph_replayer(_practised(evidence, steps, factor)))
    return _WrongRateTrace(records_of(directory), work, torch_engine(), source, source, steps)


@dataclass(frozen=True)
class _WrongRateTrace(RecordTrace):
    source: TrainingSource
    steps: range

    def open(self, subject: OpeningSource, out: Path) -> None:
        record = read_record(subject.record.line, "record")
        if not isinstance(record, StepRecord) or record.index not in self.steps:
            return super().open(subject, out)
        program = self.source.evidence.program
        assert program is not None  # a subject has a graph
        declared = program.schedule(subject.bindings, record.index)
        wrong = {name: subject.bindings[name] for name in declared}
        shown = replace(subject, bindings={**subject.bindings, **declared})
        open_operators(shown, out, SubstitutingEngine(wrong))
        return None


def _practised(evidence: CheckedRun, steps: range, factor: float) -> CheckedRun:
    """The evidence of a run, with a program that replays the steps as they were really taken."""
    program = evidence.program
    if program is None:
        raise UsageError(f"{evidence.run.path}: the run has no step graph; its steps have no operators to open")

    def rates(index: int) -> tuple[float, ...]:
        return tuple(rate * (factor if index in steps else 1.0) for rate in program.rates(index))

    return replace(evidence, program=replace(program, rates=rates))
