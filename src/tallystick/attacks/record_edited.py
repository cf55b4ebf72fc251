"""A record states another loss than that of the step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.forging import copy_run, edit_lines, find_scene, read_records, recipe_of, write_records
from tallystick.store.run import RunDirectory
from tallystick.tolerances.loss import quantise
from tallystick.transcripts.record import Record, StepRecord

FLATTERY = 0.9


def forge(run: Path, out: Path) -> None:
    """Lower the loss in one line of the transcript."""
    forged = copy_run(run, out)
    change = flatter(forged, find_scene(forged).step)
    records = [change(record) for record in read_records(forged)]
    edit_lines(forged, lambda _: [record.to_bytes() for record in records])


def forge_resealed(run: Path, out: Path) -> None:
    """Lower the loss of one step, and recompute root, tiles and claim."""
    forged = copy_run(run, out)
    change = flatter(forged, find_scene(forged).step)
    write_records(forged, [change(record) for record in read_records(forged)])


def flatter(run: RunDirectory, step: int) -> Callable[[Record], Record]:
    """A function that lowers the loss in the record of one step by a tenth."""
    decimals = recipe_of(run.spec()).record.loss_decimals

    def change(record: Record) -> Record:
        if isinstance(record, StepRecord) and record.index == step:
            return record.model_copy(update={"loss": quantise(FLATTERY * float(record.loss), decimals)})
        return record

    return change


ATTACKS = (
    Attack(
        name="record-edited",
        change="the loss of one step is lowered by a tenth in its record",
        forge=forge,
        screens=rejected("transcript root"),
        exact=rejected("transcript root"),
        tolerant=rejected("transcript root"),
        claim=rejected("transcript root"),
    ),
    Attack(
        name="record-edited-resealed",
        change="the loss of one step is lowered by a tenth; root, tiles and claim are made anew",
        forge=forge_resealed,
        screens=accepted("a lower loss is a possible loss"),
        exact=rejected("loss"),
        tolerant=rejected("loss"),
    ),
)
