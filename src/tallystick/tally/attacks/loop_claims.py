"""Claims of a loop that state another beginning, or withdraw the step graph."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tallystick.core.errors import UsageError
from tallystick.core.files import write_atomically
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.formats.claims import Claim
from tallystick.formats.records import anchor_file
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import (
    Attack,
    Forger,
    accepted,
    copy_run,
    inconclusive,
    read_anchor,
    rejected,
    seal,
)
from tallystick.tally.attacks.honest_twins import HONEST, copy
from tallystick.tally.attacks.loop_batches import CLIP, STEPS, forge_rate, train_loop
from tallystick.tally.attacks.step_graphs import program_of, remake

# A run of a custom training loop that states a published checkpoint, and starts from another state.

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

LOOP_START = (
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


# Runs whose claim withdraws the step graph: honest loops that departed from it, and forgers who avoid a replay.

EXCUSE = "step 1: the loop does something else"


def train_scheduled(run: Path, out: Path) -> None:
    """Train honestly with a schedule that steps before the recorder does."""
    RunDirectory(run).claim()
    train_loop(out, scheduled=True)


def train_clipped(run: Path, out: Path) -> None:
    """Train honestly with clipping that was not declared to the recorder."""
    _train_departing(run, out, clips=CLIP)


def train_autocast(run: Path, out: Path) -> None:
    """Train honestly with autocast around the call of the loss."""
    _train_departing(run, out, autocast=True)


def train_decay_changed(run: Path, out: Path) -> None:
    """Train honestly, and set the weight decay to 0 in the middle."""
    _train_departing(run, out, undecayed_from=STEPS // 2)


def forge_excused(run: Path, out: Path) -> None:
    """State another learning rate than the real one, and withdraw the graph that would show it."""
    forge_rate(run, out)
    _withdraw(RunDirectory(out))


def forge_excuse_of_a_recipe(run: Path, out: Path) -> None:
    """Withdraw the step graph of a run from a recipe."""
    forged = copy_run(run, out)
    if forged.spec().recipe is None:
        raise UsageError("this forgery needs a run from a recipe")
    _withdraw(forged)


def _withdraw(forged: RunDirectory) -> None:
    claim: Claim = seal(forged).model_copy(update={"no_graph": EXCUSE})
    write_atomically(forged.claim_path, claim.to_bytes())


def _train_departing(run: Path, out: Path, *, clips: float | None = None, **loop: bool | int) -> None:
    RunDirectory(run).claim()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the run cannot be replayed", RuntimeWarning)
        train_loop(out, clips=clips, **loop)  # type: ignore[arg-type]


HONEST_LOOP = accepted("nothing is forged")
NOT_REPLAYED = "no step is taken"
WITHDRAWN = inconclusive("the claim says why its graph is not what the loop did, and no step is replayed")

LOOP_WITHOUT_GRAPH = (
    Attack(
        name="loop-schedule-before-record",
        change="nothing; the schedule of the loop steps before the recorder",
        forge=train_scheduled,
        reference="loop",
        screens=HONEST_LOOP,
        exact=HONEST_LOOP,
        tolerant=HONEST_LOOP,
        is_honest=True,
    ),
    Attack(
        name="loop-clipping-undeclared",
        change="nothing; the loop clips its gradients, and does not declare this to the recorder",
        forge=train_clipped,
        reference="loop",
        screens=HONEST_LOOP,
        exact=HONEST_LOOP,
        tolerant=HONEST_LOOP,
        is_honest=True,
    ),
    Attack(
        name="loop-autocast-around",
        change="nothing; the loop runs under autocast, and the loss that was captured does not",
        forge=train_autocast,
        reference="loop",
        screens=HONEST_LOOP,
        exact=HONEST_LOOP,
        tolerant=HONEST_LOOP,
        is_honest=True,
    ),
    Attack(
        name="loop-decay-changed",
        change="nothing; the loop takes its weight decay away in the middle",
        forge=train_decay_changed,
        reference="loop",
        screens=HONEST_LOOP,
        exact=HONEST_LOOP,
        tolerant=HONEST_LOOP,
        is_honest=True,
    ),
    Attack(
        name="loop-graph-excused",
        change="one record states a learning rate 1 % above the one that was used; the claim withdraws the step graph",
        forge=forge_excused,
        reference="loop",
        screens=accepted(NOT_REPLAYED),
        exact=WITHDRAWN,
        tolerant=WITHDRAWN,
    ),
    Attack(
        name="recipe-graph-excused",
        change="the claim of a run by a recipe withdraws its step graph",
        forge=forge_excuse_of_a_recipe,
        screens=rejected("claim"),
        exact=rejected("claim"),
        tolerant=rejected("claim"),
    ),
)
