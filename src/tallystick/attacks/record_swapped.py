"""Two neighbouring steps are exchanged."""

from __future__ import annotations

from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.contents import swap_contents
from tallystick.attacks.forging import copy_run, edit_lines, find_scene, place_of_step, read_records, write_records


def forge(run: Path, out: Path) -> None:
    """Swap the lines of two neighbouring steps."""
    forged = copy_run(run, out)
    place = place_of_step(read_records(forged), find_scene(forged).step)
    edit_lines(forged, lambda lines: [*lines[: place - 1], lines[place], lines[place - 1], *lines[place + 1 :]])


def forge_resealed(run: Path, out: Path) -> None:
    """Swap the records of two neighbouring steps, and recompute root, tiles and claim."""
    forged = copy_run(run, out)
    records = read_records(forged)
    place = place_of_step(records, find_scene(forged).step)
    records[place - 1], records[place] = records[place], records[place - 1]
    write_records(forged, records)


def forge_renumbered(run: Path, out: Path) -> None:
    """Swap the values of two neighbouring steps under their correct numbers and batches, and reseal."""
    forged = copy_run(run, out)
    step = find_scene(forged).step
    write_records(forged, swap_contents(read_records(forged), step - 1, step))


ATTACKS = (
    Attack(
        name="record-swapped",
        change="the lines of two neighbouring steps are swapped",
        forge=forge,
        screens=rejected("transcript root", "record order"),
        exact=rejected("transcript root", "record order"),
        tolerant=rejected("transcript root", "record order"),
        claim=rejected("transcript root", "record order"),
    ),
    Attack(
        name="record-swapped-resealed",
        change="the records of two neighbouring steps are swapped; root, tiles and claim are made anew",
        forge=forge_resealed,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
    Attack(
        name="record-swapped-renumbered",
        change="the values of two neighbouring steps are swapped under their right numbers and batches; resealed",
        forge=forge_renumbered,
        screens=accepted("numbers, batches, learning rates and links are all in order"),
        exact=rejected("loss", "gradient norm", "projection summary"),
        tolerant=rejected("projection summary"),
    ),
)
