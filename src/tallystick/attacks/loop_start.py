"""A run of a custom training loop that states a published checkpoint, and starts from another state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tallystick.attacks.attack import Attack, Forger, accepted, inconclusive, rejected
from tallystick.attacks.forging import read_anchor
from tallystick.attacks.graph_forging import program_of, remake
from tallystick.attacks.honest_twins import HONEST, copy
from tallystick.errors import UsageError
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.record import anchor_file

TUNING = np.float32(1e-3)


Change = Callable[[dict[str, Tensor]], None]


def forge_start(change: Change) -> Forger:
    """A forger that takes every step from a changed first state, under the spec that states the checkpoint."""

    def forge(run: Path, out: Path) -> None:
        spec, program = RunDirectory(run).spec(), program_of(run)
        if spec.initial is None:
            raise UsageError("this forgery needs a run of a custom training loop that states its first weights")
        with TemporaryDirectory() as folder:
            staged = Path(folder, "run")
            shutil.copytree(run, staged)
            start = read_anchor(RunDirectory(run), 0)
            change(start)
            write_state(staged / anchor_file(0), start)
            remake(staged, out, program, program, spec)

    return forge


def tunes(start: dict[str, Tensor]) -> None:
    """Train one weight further."""
    name = max(name for name in start if name.startswith("weights."))
    start[name] = Tensor.of(start[name].array() + TUNING)


def plants_moments(start: dict[str, Tensor]) -> None:
    """Choose the first moment of one weight, so that the first step moves it where the prover likes."""
    name = max(name for name in start if name.endswith(".exp_avg"))
    start[name] = Tensor.of(start[name].array() + np.float32(1.0))


def counts_ahead(start: dict[str, Tensor]) -> None:
    """Begin to count the steps of the optimizer at a thousand: the first steps are not corrected for bias."""
    for name in (name for name in start if name.startswith("optimizer.") and name.endswith(".step")):
        start[name] = Tensor.of(start[name].array() + np.float32(1000))


NOT_COMPARED = "the screens have no checkpoint to compare the first anchor with"

MEMORY = inconclusive("the memory of the optimizer is neither that of a new run nor of one that the auditor has")

ATTACKS = (
    Attack(
        name="loop-start-tuned",
        change="the spec states a published checkpoint, and the run begins with weights that were trained further",
        forge=forge_start(tunes),
        reference="checkpoint",
        screens=accepted(NOT_COMPARED),
        exact=rejected("first weights"),
        tolerant=rejected("first weights"),
    ),
    Attack(
        name="loop-start-moments",
        change="the run begins with the checkpoint that its spec states, and with a chosen moment of one weight",
        forge=forge_start(plants_moments),
        reference="checkpoint",
        screens=accepted(NOT_COMPARED),
        exact=MEMORY,
        tolerant=MEMORY,
    ),
    Attack(
        name="loop-start-counters",
        change="the run begins with the checkpoint that its spec states, and counts its steps from a thousand on",
        forge=forge_start(counts_ahead),
        reference="checkpoint",
        screens=accepted(NOT_COMPARED),
        exact=MEMORY,
        tolerant=MEMORY,
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
