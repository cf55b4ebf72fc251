"""Runs whose claim withdraws the step graph: honest loops that departed from it, and forgers who avoid a replay."""

from __future__ import annotations

import warnings
from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, inconclusive, rejected
from tallystick.attacks.forging import copy_run, seal
from tallystick.attacks.loop_batches import forge_rate
from tallystick.attacks.loop_reference import CLIP, STEPS, train_loop
from tallystick.documents.files import write_atomically
from tallystick.errors import UsageError
from tallystick.store.run import RunDirectory
from tallystick.transcripts.claim import Claim

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


HONEST = accepted("nothing is forged")
NOT_REPLAYED = "no step is taken"
WITHDRAWN = inconclusive("the claim says why its graph is not what the loop did, and no step is replayed")

ATTACKS = (
    Attack(
        name="loop-schedule-before-record",
        change="nothing; the schedule of the loop steps before the recorder",
        forge=train_scheduled,
        reference="loop",
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
        is_honest=True,
    ),
    Attack(
        name="loop-clipping-undeclared",
        change="nothing; the loop clips its gradients, and does not declare this to the recorder",
        forge=train_clipped,
        reference="loop",
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
        is_honest=True,
    ),
    Attack(
        name="loop-autocast-around",
        change="nothing; the loop runs under autocast, and the loss that was captured does not",
        forge=train_autocast,
        reference="loop",
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
        is_honest=True,
    ),
    Attack(
        name="loop-decay-changed",
        change="nothing; the loop takes its weight decay away in the middle",
        forge=train_decay_changed,
        reference="loop",
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
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
