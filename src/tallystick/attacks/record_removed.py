"""A step is missing from the transcript."""

from __future__ import annotations

from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.contents import shift_earlier
from tallystick.attacks.forging import copy_run, edit_lines, find_scene, place_of_step, read_records, write_records


def forge(run: Path, out: Path) -> None:
    """Delete the line of one step."""
    forged = copy_run(run, out)
    place = place_of_step(read_records(forged), find_scene(forged).step)
    edit_lines(forged, lambda lines: lines[:place] + lines[place + 1 :])


def forge_resealed(run: Path, out: Path) -> None:
    """Delete the record of one step, and recompute root, tiles and claim."""
    forged = copy_run(run, out)
    records = read_records(forged)
    del records[place_of_step(records, find_scene(forged).step)]
    write_records(forged, records)


def forge_renumbered(run: Path, out: Path) -> None:
    """Delete the values of one step, shift those of later steps up to the anchor, and repeat the last ones."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    write_records(forged, shift_earlier(read_records(forged), scene.step, scene.after - 1))


ATTACKS = (
    Attack(
        name="record-removed",
        change="the line of one step is deleted",
        forge=forge,
        screens=rejected("transcript root", "record order"),
        exact=rejected("transcript root", "record order"),
        tolerant=rejected("transcript root", "record order"),
        claim=rejected("transcript root", "record order"),
    ),
    Attack(
        name="record-removed-resealed",
        change="the record of one step is deleted; root, tiles and claim are made anew",
        forge=forge_resealed,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
    Attack(
        name="record-removed-renumbered",
        change="the values of one step are deleted, later ones move up under their right numbers and batches; resealed",
        forge=forge_renumbered,
        screens=accepted("numbers, batches, learning rates and links are all in order"),
        exact=rejected("loss", "gradient norm", "projection summary"),
        tolerant=rejected("projection summary"),
    ),
)
