"""A state is edited where no operator and no sketch shows it: only a replay tells, and members of a committee replay.

The sketch binds nothing, because its seed is known (`verdicts.distances`), and it leaves out the optimizer's memory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tallystick.audits.opening import OpeningSource
from tallystick.core.safetensors import write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.evidence.traces import RecordTrace, trace_of
from tallystick.disputes.game.protocols import Doubt
from tallystick.engines.torch.training.trainer import Observation
from tallystick.formats.data.step_program import projection_seed
from tallystick.formats.records import AnchorRecord, Record, anchor_file
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import (
    Batches,
    DishonestTrainer,
    copy_run,
    place_of_step,
    read_anchor,
    read_records,
    summariser_of,
    train_on,
    write_records,
)
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.verdict import Fault
from tests.support.attacks.disputes.deception import Deception, Staged
from tests.support.attacks.disputes.openings import OtherSubject
from tests.support.attacks.disputes.scene import STEP, TRAINED, Scene
from tests.support.attacks.reference import train_by

MOMENT: Final = ".exp_avg"
EXAGGERATED: Final = 1.5
EDIT: Final = 2e-3
MARK: Final = 3
FAR: Final = 36
LONG: Final[dict[str, Any]] = TRAINED | {
    "training": TRAINED["training"] | {"steps": FAR + 1},
    "record": TRAINED["record"] | {"anchor_stride": FAR + 1},
}


class RememberingTrainer(DishonestTrainer):
    """Before one step it multiplies what the optimizer remembers of gradients."""

    def __init__(self, spec: Spec, step: int) -> None:
        super().__init__(spec)
        self._step = step

    def step(self, micro_batches: Batches) -> Observation:
        """One step, from the state that the last one left, or from an edited one."""
        if self.index + 1 == self._step:
            for slots in self.optimizer.state.values():
                slots["exp_avg"].mul_(EXAGGERATED)
        return super().step(micro_batches)


def stage_moments(scene: Scene, folder: Path) -> Staged:
    """A step starts from edited moments of the optimizer; operators, sketches and loss are in order."""
    return _edited_moments(scene.run, folder, MARK, STEP)


def stage_moments_far_from_an_anchor(scene: Scene, folder: Path) -> Staged:
    """The same behind more steps than limits are calibrated for."""
    train_by(LONG, folder / "honest")
    return _edited_moments(folder / "honest", folder, 0, FAR)


def stage_honest_far_from_an_anchor(scene: Scene, folder: Path) -> Staged:
    """An honest step behind as many steps, contested all the same."""
    train_by(LONG, folder / "honest")
    place = place_of_step(read_records(RunDirectory(folder / "honest")), FAR)
    return Staged(
        folder / "honest", trace_of(statement_at(folder / "honest"), folder / "work"), Doubt(place, place + 1, "")
    )


def stage_anchor(scene: Scene, folder: Path) -> Staged:
    """Two weights of an anchor are moved so that its sketch stays."""
    forged = copy_run(scene.run, folder / "run")
    edited = behind_the_sketch(forged.spec(), read_anchor(forged, MARK))
    write_state(forged.path / anchor_file(MARK), edited)

    shown = {"digest": state_digest(edited), "summary": summariser_of(forged, edited).at_anchor()}

    def change(record: Record) -> Record:
        is_it = isinstance(record, AnchorRecord) and record.index == MARK
        return record.model_copy(update=shown) if is_it else record

    write_records(forged, [change(record) for record in read_records(forged)])
    return Staged(forged.path, trace_of(statement_at(forged.path), folder / "work"))


def stage_honest_anchor(scene: Scene, folder: Path) -> Staged:
    """An honest anchor, contested all the same."""
    records = read_records(RunDirectory(scene.run))
    place = next(i for i, each in enumerate(records) if isinstance(each, AnchorRecord) and each.index == MARK)
    return Staged(scene.run, scene.training_trace(folder / "work"), Doubt(place, place + 1, ""))


def behind_the_sketch(spec: Spec, state: State) -> State:
    """A state with the same sketch: two elements of one column are moved against each other."""
    projection = Projection(projection_seed(spec), spec.recorded.projection_width)
    name = next(name for name in sorted(state) if name.startswith("weights.") and state[name].array().ndim == 2)
    values, signs = np.array(state[name].array()), projection.signs(name, 2).astype(np.float32)
    values.flat[0] += np.float32(EDIT) * signs[0]
    values.flat[projection.width] -= np.float32(EDIT) * signs[1]
    return {**state, name: Tensor.of(values, state[name].dtype)}


def _edited_moments(run: Path, folder: Path, mark: int, step: int) -> Staged:
    forged = folder / "run"
    train_on(run, forged, mark, RememberingTrainer(RunDirectory(run).spec(), step))
    honest = trace_of(statement_at(forged), folder / "work")
    assert isinstance(honest, RecordTrace)
    trace = OtherSubject(honest.records, honest.work, honest.engine, honest.subject, _with_edited_moments)
    return Staged(forged, trace)


def _with_edited_moments(subject: OpeningSource) -> OpeningSource:
    edited = {
        name: Tensor.of((tensor.array() * np.float32(EXAGGERATED)).astype(np.float32))
        for name, tensor in subject.bindings.items()
        if name.startswith("optimizer.") and name.endswith(MOMENT)
    }
    return replace(subject, bindings={**subject.bindings, **edited})


ATTACKS = (
    Deception(
        "moments-edited",
        "a step starts from 1.5 times what the optimizer remembered",
        stage_moments,
        "structure",
        None,
        Fault.PROVER,
    ),
    Deception(
        "moments-edited-far-from-an-anchor",
        "as moments-edited, behind more steps than limits are calibrated for",
        stage_moments_far_from_an_anchor,
        "structure",
        None,
        Fault.PROVER,
    ),
    Deception(
        "honest-far-from-an-anchor",
        "nothing; a step behind as many steps is contested",
        stage_honest_far_from_an_anchor,
        "leaf",
        Fault.CHALLENGER,
        Fault.CHALLENGER,
        is_honest=True,
    ),
    Deception(
        "anchor-behind-its-sketch",
        "two weights of an anchor are moved so that its sketch stays the same",
        stage_anchor,
        "leaf",
        None,
        Fault.PROVER,
    ),
    Deception(
        "honest-anchor",
        "nothing; an anchor is contested",
        stage_honest_anchor,
        "leaf",
        None,
        Fault.CHALLENGER,
        is_honest=True,
    ),
)
