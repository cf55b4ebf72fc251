"""The transcript contains a step that was never taken."""

from __future__ import annotations

from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.contents import shift_later
from tallystick.attacks.forging import copy_run, edit_lines, find_scene, place_of_step, read_records, write_records


def forge(run: Path, out: Path) -> None:
    """Repeat the line of one step."""
    forged = copy_run(run, out)
    place = place_of_step(read_records(forged), find_scene(forged).step)
    edit_lines(forged, lambda lines: [*lines[: place + 1], *lines[place:]])


def forge_resealed(run: Path, out: Path) -> None:
    """Repeat the record of one step, and recompute root, tiles and claim."""
    forged = copy_run(run, out)
    records = read_records(forged)
    place = place_of_step(records, find_scene(forged).step)
    write_records(forged, [*records[: place + 1], *records[place:]])


def forge_renumbered(run: Path, out: Path) -> None:
    """Invent the values of one step and shift those of later steps up to the anchor, under correct numbers."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    write_records(forged, shift_later(read_records(forged), scene.step, scene.after - 1))


def forge_tail(run: Path, out: Path) -> None:
    """Repeat the last record and reseal; a tree that duplicates unpaired leaves would have the same root."""
    forged = copy_run(run, out)
    records = read_records(forged)
    write_records(forged, [*records, records[-1]])


ATTACKS = (
    Attack(
        name="record-inserted",
        change="the line of one step is repeated",
        forge=forge,
        screens=rejected("transcript root", "record order"),
        exact=rejected("transcript root", "record order"),
        tolerant=rejected("transcript root", "record order"),
        claim=rejected("transcript root", "record order"),
    ),
    Attack(
        name="record-inserted-resealed",
        change="the record of one step is repeated; root, tiles and claim are made anew",
        forge=forge_resealed,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
    Attack(
        name="record-inserted-renumbered",
        change="an invented step pushes later ones back, all under their right numbers and batches; resealed",
        forge=forge_renumbered,
        screens=accepted("numbers, batches, learning rates and links are all in order"),
        exact=rejected("loss", "gradient norm", "projection summary"),
        tolerant=rejected("projection summary"),
    ),
    Attack(
        name="tail-repeated-resealed",
        change="the last record is repeated; root, tiles and claim are made anew",
        forge=forge_tail,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
)
