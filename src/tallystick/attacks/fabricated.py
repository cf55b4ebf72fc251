"""Steps that were never computed: their weights, moments and losses are invented."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.dishonest import FabricatingTrainer, interpolate, retrain, train_on
from tallystick.attacks.forging import Scene, find_scene, read_anchor, read_records, recipe_of
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.reach import direction_bound
from tallystick.transcripts.recipe import OptimizerRecipe, Recipe
from tallystick.transcripts.record import StepRecord
from tallystick.transcripts.spec import Spec
from tallystick.workloads.schedule import learning_rate

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


ATTACKS = (
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
