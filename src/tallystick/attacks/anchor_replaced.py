"""An anchor in the middle is not a state of the training."""

from __future__ import annotations

from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.forging import copy_run, find_scene, read_anchor, read_records, replace_anchor, write_records
from tallystick.attacks.weights_edited import take_back
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import AnchorRecord, Record, anchor_file


def forge(run: Path, out: Path) -> None:
    """Edit the weights of the middle anchor, and every record about them."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    before, middle, after = (read_anchor(forged, mark) for mark in (scene.before, scene.middle, scene.after))
    replace_anchor(forged, scene.middle, take_back(before, middle, after))


def forge_file_only(run: Path, out: Path) -> None:
    """Replace the file of the middle anchor by that of the next one."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    (forged.path / anchor_file(scene.middle)).write_bytes((forged.path / anchor_file(scene.after)).read_bytes())


def forge_file_and_record(run: Path, out: Path) -> None:
    """Replace the middle anchor by a copy of the next one, both its file and its record."""
    forge_file_only(run, out)
    forged = RunDirectory(out)
    scene = find_scene(forged)
    records = read_records(forged)
    other = next(r for r in records if isinstance(r, AnchorRecord) and r.index == scene.after)

    def replaced(record: Record) -> Record:
        if isinstance(record, AnchorRecord) and record.index == scene.middle:
            return record.model_copy(update={"digest": other.digest, "summary": other.summary})
        return record

    write_records(forged, [replaced(record) for record in records])


ATTACKS = (
    Attack(
        name="anchor-replaced",
        change="the weights of a middle anchor are edited; its record, its summaries, roots and claim are made anew",
        forge=forge,
        screens=accepted("only weights that turned around there are edited, so that both moves stay within reach"),
        exact=rejected("state", "projection summary"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="anchor-swapped",
        change="the file of one anchor replaces that of another",
        forge=forge_file_only,
        screens=rejected("anchor"),
        exact=rejected("anchor"),
        tolerant=rejected("anchor"),
        claim=rejected("anchor"),
    ),
    Attack(
        name="anchor-swapped-resealed",
        change="the file and the record of one anchor replace those of another; roots and claim are made anew",
        forge=forge_file_and_record,
        screens=rejected("anchor"),
        exact=rejected("anchor"),
        tolerant=rejected("anchor"),
        claim=rejected("claim", "anchor"),
    ),
)
