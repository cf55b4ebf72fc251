"""The first half of one run is continued by the second half of another."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tallystick.attacks.attack import Attack, rejected
from tallystick.attacks.bad_seed import forge as forge_bad_seed
from tallystick.attacks.forging import copy_run, find_scene, read_records, write_records
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import HeaderRecord, Record


def forge(run: Path, out: Path) -> None:
    """Continue the run from its middle anchor with the same steps of a run from another seed."""
    forged = copy_run(run, out)
    middle = find_scene(forged).middle
    with TemporaryDirectory() as folder:
        other = RunDirectory(Path(folder) / "other")
        forge_bad_seed(run, other.path)
        records = [r for r in read_records(forged) if not is_after(r, middle)]
        records += [r for r in read_records(other) if is_after(r, middle)]
        for record in records:
            if record.kind == "anchor" and is_after(record, middle):
                shutil.copy(other.path / record.file, forged.path / record.file)
        keep_blobs(other, forged)
    write_records(forged, records)


def keep_blobs(source: RunDirectory, target: RunDirectory) -> None:
    """Copy the boundary hints, if any were recorded."""
    if (source.path / "blobs").is_dir():
        shutil.copytree(source.path / "blobs", target.path / "blobs", dirs_exist_ok=True)


def is_after(record: Record, mark: int) -> bool:
    """Whether a record describes something after state `mark`."""
    return not isinstance(record, HeaderRecord) and record.index > mark


ATTACKS = (
    Attack(
        name="runs-spliced",
        change="from the middle on, the steps and anchors are those of a run from another seed; links are made anew",
        forge=forge,
        screens=rejected("reach"),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)
