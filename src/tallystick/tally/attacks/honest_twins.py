"""Honest controls: an unchanged copy, a copy with code files in it, and the same run trained by another process."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.training.trainer import Trainer
from tallystick.formats.step_program import classes
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import Attack, accepted, copy_run, recipe_of, rejected, retrain

HONEST = accepted("nothing is forged")


def copy(run: Path, out: Path) -> None:
    """Copy the run."""
    copy_run(run, out)


def copy_with_a_program(run: Path, out: Path) -> None:
    """Copy the run, and add code files that a careless auditor would import."""
    forged = copy_run(run, out)
    program = "from pathlib import Path\nPath(__file__).with_name('executed').touch()\n"
    for name in ("trainer.py", "conftest.py", "sitecustomize.py", "torch.py"):
        (forged.path / name).write_text(program)


def train_elsewhere(run: Path, out: Path) -> None:
    """Train the same spec in a second process that shares only two directories with this one."""
    prover = multiprocessing.get_context("spawn").Process(target=_prove, args=(str(run), str(out)))
    prover.start()
    prover.join()
    if prover.exitcode != 0:
        raise UnavailableError(f"{out}: the training process ended with exit code {prover.exitcode}")


def _prove(run: str, out: str) -> None:
    import torch

    honest = RunDirectory(Path(run))
    torch.set_num_threads(honest.environment().threads)
    spec = honest.spec()
    retrain(honest.path, Path(out), Trainer(recipe_of(spec), classes(spec)))


HONEST_TWINS = (
    Attack(
        name="honest-copy",
        change="nothing; the run is copied",
        forge=copy,
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
        claim=HONEST,
        is_honest=True,
    ),
    Attack(
        name="prover-auditor-split",
        change="nothing; a process of its own trains the same spec, and only the run directory is left of it",
        forge=train_elsewhere,
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
        claim=rejected("claim"),
        is_honest=True,
    ),
    Attack(
        name="smuggled-program",
        change="Python files are put into the run directory; the audit must not run them",
        forge=copy_with_a_program,
        screens=accepted("nothing in a run directory is ever executed, so the files do no harm"),
        exact=accepted("nothing in a run directory is ever executed"),
        tolerant=accepted("nothing in a run directory is ever executed"),
        claim=accepted("the claim is the honest one"),
        is_honest=True,
    ),
)
