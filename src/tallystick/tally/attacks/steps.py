"""Steps that are spliced, noisy, invented, or hidden from the sample of an audit."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tallystick.audits.policy import NONCE_BYTES, sample_steps
from tallystick.core.digests import Frontier, digest_from, leaf_hash
from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor
from tallystick.formats.claims import Claim, Log
from tallystick.formats.recipe import OptimizerRecipe, Recipe, learning_rate
from tallystick.formats.records import HeaderRecord, Record, StepRecord, TraceEntry
from tallystick.formats.spec import Spec
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import (
    Attack,
    DishonestTrainer,
    FabricatingTrainer,
    Scene,
    accepted,
    copy_run,
    find_scene,
    inconclusive,
    interpolate,
    read_anchor,
    read_records,
    recipe_of,
    rejected,
    retrain,
    seal,
    train_on,
    write_records,
)
from tallystick.tally.attacks.recipe import forge_bad_seed
from tallystick.verdicts.reach import direction_bound

# One step takes a gradient with noise in it.

SHARE_OF_NORM = 1e-2


class NoisyTrainer(DishonestTrainer):
    """Adds noise to each gradient in one step, as a fraction of its norm; it does not touch the random generators."""

    def __init__(self, spec: Spec, noisy_step: int, share: float = SHARE_OF_NORM) -> None:
        super().__init__(spec)
        self._noisy_step, self._share = noisy_step, share
        self.optimizer.register_step_pre_hook(self._disturb)

    def _disturb(self, *_: Any) -> None:
        if self.index + 1 != self._noisy_step:
            return
        noise = np.random.default_rng(0)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                drawn = parameter.grad.new_tensor(noise.standard_normal(parameter.grad.shape))
                parameter.grad.add_(drawn, alpha=self._share * float(parameter.grad.norm() / drawn.norm()))


def forge_gradient_noise(run: Path, out: Path) -> None:
    """Continue honestly from the middle anchor, except for one noisy step."""
    honest = RunDirectory(run)
    scene = find_scene(honest)
    train_on(run, out, scene.middle, NoisyTrainer(honest.spec(), scene.step))


GRADIENT_NOISE = (
    Attack(
        name="gradient-noise",
        change="one step in the middle takes a gradient with noise of 1 % of its norm",
        forge=forge_gradient_noise,
        screens=accepted("the step is as long and as smooth as an honest one"),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)


# The prover knows the nonce of the audit beforehand and grinds claims until the sample misses the bad steps.

PROVER_NONCE = bytes(NONCE_BYTES)
"""A nonce that anybody can guess."""
SAMPLES = 4
ATTEMPTS_MAX = 100_000


def forge_nonce_ground(run: Path, out: Path) -> None:
    """Add noise to one step, then vary the stated time of the last step until the known nonce samples elsewhere."""
    forge_gradient_noise(run, out)
    forged = RunDirectory(out)
    scene = find_scene(forged)
    lines = list(read_lines(forged.trace_path))
    for line, claim in variants(forged.claim(), lines):
        if not hits(claim, scene):
            forged.trace_path.write_bytes(b"".join(kept + b"\n" for kept in [*lines[:-1], line]))
            seal(forged)
            return
    raise UsageError(f"{run}: no sample of {SAMPLES} steps misses the forged segment")


def variants(claim: Claim, trace: list[bytes]) -> Iterator[tuple[bytes, Claim]]:
    """Claims that differ only in the stated time of the last step, each with the line that states it."""
    frontier = Frontier.empty()
    for line in trace[:-1]:
        frontier = frontier.append(leaf_hash(line))
    entry = TraceEntry.from_bytes(trace[-1], "trace.jsonl")
    for attempt in range(ATTEMPTS_MAX):
        seconds = round(entry.seconds + attempt * 1e-6, 6)
        line = entry.model_copy(update={"seconds": seconds}).to_bytes()
        log = Log(root=digest_from(frontier.append(leaf_hash(line)).root()), size=len(trace))
        yield line, claim.model_copy(update={"trace": log})


def hits(claim: Claim, scene: Scene) -> bool:
    """Whether the known nonce samples a step whose replay would show the forgery."""
    sampled = sample_steps(PROVER_NONCE, claim.identity, scene.last, SAMPLES)
    return any(scene.middle < step <= scene.after for step in sampled)


NONCE_GROUND = (
    Attack(
        name="nonce-ground",
        change="one noisy step, and a claim ground until a nonce known beforehand samples past it",
        forge=forge_nonce_ground,
        screens=accepted("the step is as long and as smooth as an honest one"),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)


# The fraud is so far after its anchor that no sampled replay reaches it.


def forge_out_of_reach(run: Path, out: Path) -> None:
    """Declare one anchor for the whole run, and add noise to a step outside of the window."""
    honest = RunDirectory(run)
    scene, recipe = find_scene(honest), recipe_of(honest.spec())
    record = recipe.record.model_copy(update={"anchor_stride": scene.last})
    spec = honest.spec().model_copy(update={"recipe": recipe.model_copy(update={"record": record})})
    retrain(run, out, NoisyTrainer(spec, scene.step), spec)


OUT_OF_REACH = (
    Attack(
        name="fraud-out-of-reach",
        change="the spec declares no anchor between the first and the last state, and a step far from both is noisy",
        forge=forge_out_of_reach,
        screens=accepted("the step is as long and as smooth as an honest one"),
        exact=inconclusive("the sampled steps lie further from the anchor than the window, and the report says so"),
        full=rejected("projection summary", "state"),
        tolerant=inconclusive("as in the exact audit"),
    ),
)


# The first half of one run is continued by the second half of another.


def forge_runs_spliced(run: Path, out: Path) -> None:
    """Continue the run from its middle anchor with the same steps of a run from another seed."""
    forged = copy_run(run, out)
    middle = find_scene(forged).middle
    with TemporaryDirectory() as folder:
        other = RunDirectory(Path(folder) / "other")
        forge_bad_seed(run, other.path)
        records = [r for r in read_records(forged) if not is_after(r, middle)]
        records += [r for r in read_records(other) if is_after(r, middle)]
        for record in records:
            if record.kind == "anchor" and is_after(record, middle):
                shutil.copy(other.path / record.file, forged.path / record.file)
        keep_blobs(other, forged)
    write_records(forged, records)


def keep_blobs(source: RunDirectory, target: RunDirectory) -> None:
    """Copy the boundary hints, if any were recorded."""
    if (source.path / "blobs").is_dir():
        shutil.copytree(source.path / "blobs", target.path / "blobs", dirs_exist_ok=True)


def is_after(record: Record, mark: int) -> bool:
    """Whether a record describes something after state `mark`."""
    return not isinstance(record, HeaderRecord) and record.index > mark


RUNS_SPLICED = (
    Attack(
        name="runs-spliced",
        change="from the middle on, the steps and anchors are those of a run from another seed; links are made anew",
        forge=forge_runs_spliced,
        screens=rejected("reach"),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)


# Steps that were never computed: their weights, moments and losses are invented.

Losses = dict[int, float]
TINY_RATE = 1e-12
NORM = 0.5
CAUTION = 0.8


def forge_skipped(run: Path, out: Path) -> None:
    """Compute no step of the middle segment: extrapolate the update of the segment before it, then train again."""
    honest = RunDirectory(run)
    scene = find_scene(honest)
    trainer = FabricatingTrainer(honest.spec(), onward(honest, scene), straight(honest, scene), NORM)
    train_on(run, out, scene.middle, trainer)


def forge_transcript(run: Path, out: Path) -> None:
    """Invent a training that leads to the final weights of the run, which are taken as stolen."""
    honest = RunDirectory(run)
    retrain(run, out, _inventor(honest, honest.spec()))


def forge_tiny_rate(run: Path, out: Path) -> None:
    """Invent the same training under a spec with a learning rate near 0, so that updates are infinitesimal."""
    honest = RunDirectory(run)
    recipe = recipe_of(honest.spec())
    settings = OptimizerRecipe(**recipe.optimizer.model_dump() | {"learning_rate": TINY_RATE})
    spec = honest.spec().model_copy(update={"recipe": recipe.model_copy(update={"optimizer": settings})})
    retrain(run, out, _inventor(honest, spec), spec)


def onward(run: RunDirectory, scene: Scene) -> Callable[[int], dict[str, Tensor] | None]:
    """The states of the middle segment, extrapolated from the two anchors before it."""
    before, middle = read_anchor(run, scene.before), read_anchor(run, scene.middle)
    recipe = recipe_of(run.spec())

    def state(step: int) -> dict[str, Tensor] | None:
        if not scene.middle < step <= scene.after:
            return None
        share = 1.0 + CAUTION * travelled(recipe, scene.middle, step) / travelled(recipe, scene.before, scene.middle)
        moved = interpolate(before, middle, share, step)
        kept = interpolate(middle, middle, 0.0, step)
        return {name: moved[name] if name.startswith("weights.") else kept[name] for name in moved}

    return state


def straight(run: RunDirectory, scene: Scene) -> Callable[[int], float]:
    """Losses on a straight line through two losses of the segment before."""
    losses = recorded_losses(run)
    slope = (losses[scene.middle] - losses[scene.before + 1]) / (scene.middle - scene.before - 1)
    return lambda step: losses[scene.middle] + slope * (step - scene.middle)


def recorded_losses(run: RunDirectory) -> Losses:
    """The recorded losses by step."""
    return {r.index: float(r.loss) for r in read_records(run) if isinstance(r, StepRecord)}


def _inventor(run: RunDirectory, spec: Spec) -> FabricatingTrainer:
    last, recipe = find_scene(run).last, recipe_of(run.spec())
    losses = recorded_losses(run)
    start, end = read_anchor(run, 0), read_anchor(run, last)

    def lose(step: int) -> float:
        return losses[last] + (losses[1] - losses[last]) * math.exp(-4.0 * (step - 1) / last)

    def state(step: int) -> dict[str, Tensor]:
        return interpolate(start, end, travelled(recipe, 0, step) / travelled(recipe, 0, last), step)

    return FabricatingTrainer(spec, state, lose, NORM)


def travelled(recipe: Recipe, start: int, end: int) -> float:
    """How far steps `start + 1` … `end` can move a weight: a careful forger stays within the reach screen."""
    settings, steps = recipe.optimizer, range(start + 1, end + 1)
    bounds = [direction_bound(settings.betas, step) if settings.kind == "adamw" else 1.0 for step in steps]
    return sum(learning_rate(recipe, step) * bound for step, bound in zip(steps, bounds, strict=True))


FABRICATED = (
    Attack(
        name="skipped-steps",
        change="no step of the middle segment is computed: its weights go on along the update before it",
        forge=forge_skipped,
        screens=accepted("weights move as far and as smoothly as they did before"),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="transcript-without-training",
        change="nothing is computed: stolen final weights, a straight way to them, invented moments and losses",
        forge=forge_transcript,
        screens=accepted("invented weights stay within reach and invented moments never fall"),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="infinitesimal-update",
        change="the same invention under a declared learning rate of 1e-12, with which a replay moves nothing",
        forge=forge_tiny_rate,
        screens=rejected("reach"),
        exact=rejected("state"),
        tolerant=rejected("weights update-floor"),
    ),
)
