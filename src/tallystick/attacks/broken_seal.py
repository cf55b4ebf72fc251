"""One number in an anchor file is changed by 1e-8."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tallystick.attacks.attack import Attack, rejected
from tallystick.attacks.forging import copy_run, find_scene, read_anchor
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.record import anchor_file

CHANGE = np.float32(1e-8)


def forge(run: Path, out: Path) -> None:
    """Change the smallest of the weights by 1e-8 in the anchor file, and nothing else."""
    forged = copy_run(run, out)
    corrupt(forged, find_scene(forged).middle)


def corrupt(run: RunDirectory, mark: int) -> None:
    """Change one weight of anchor `mark` by 1e-8 in place; the file stays canonical."""
    state = read_anchor(run, mark)
    name = next(name for name in sorted(state) if name.startswith("weights."))
    values = np.array(state[name].array())
    smallest = int(np.abs(values).argmin())
    values.flat[smallest] += CHANGE
    write_state(run.path / anchor_file(mark), state | {name: Tensor.of(values)})


ATTACKS = (
    Attack(
        name="broken-seal",
        change="one weight in an anchor file is changed by 1e-8; every record stays as it was",
        forge=forge,
        screens=rejected("anchor"),
        exact=rejected("anchor"),
        tolerant=rejected("anchor"),
        claim=rejected("anchor"),
    ),
)
