"""A run of a custom training loop that states a published checkpoint, and starts from another state."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.forging import read_anchor
from tallystick.attacks.graph_forging import program_of, remake
from tallystick.attacks.honest_twins import HONEST, copy
from tallystick.errors import UsageError
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.record import anchor_file

TUNING = np.float32(1e-3)


def forge_tuned_start(run: Path, out: Path) -> None:
    """Take every step from weights that were trained further, under the spec that states the checkpoint."""
    spec, program = RunDirectory(run).spec(), program_of(run)
    if spec.initial is None:
        raise UsageError("this forgery needs a run of a custom training loop that states its first weights")
    with TemporaryDirectory() as folder:
        staged = Path(folder, "run")
        shutil.copytree(run, staged)
        start = read_anchor(RunDirectory(run), 0)
        name = max(each for each in start if each.startswith("weights."))
        start[name] = Tensor.of(start[name].array() + TUNING)
        write_state(staged / anchor_file(0), start)
        remake(staged, out, program, program, spec)


NOT_COMPARED = "the screens have no checkpoint to compare the first anchor with"

ATTACKS = (
    Attack(
        name="loop-start-tuned",
        change="the spec states a published checkpoint, and the run begins with weights that were trained further",
        forge=forge_tuned_start,
        reference="checkpoint",
        screens=accepted(NOT_COMPARED),
        exact=rejected("first weights"),
        tolerant=rejected("first weights"),
    ),
    Attack(
        name="loop-start-stated",
        change="nothing; the loop begins with the checkpoint that its spec states",
        forge=copy,
        reference="checkpoint",
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
        claim=HONEST,
        is_honest=True,
    ),
)
