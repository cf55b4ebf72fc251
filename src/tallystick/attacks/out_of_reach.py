"""The fraud is so far after its anchor that no sampled replay reaches it."""

from __future__ import annotations

from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, inconclusive, rejected
from tallystick.attacks.dishonest import retrain
from tallystick.attacks.forging import find_scene, recipe_of
from tallystick.attacks.gradient_noise import NoisyTrainer
from tallystick.store.run import RunDirectory


def forge(run: Path, out: Path) -> None:
    """Declare one anchor for the whole run, and add noise to a step outside of the window."""
    honest = RunDirectory(run)
    scene, recipe = find_scene(honest), recipe_of(honest.spec())
    record = recipe.record.model_copy(update={"anchor_stride": scene.last})
    spec = honest.spec().model_copy(update={"recipe": recipe.model_copy(update={"record": record})})
    retrain(run, out, NoisyTrainer(spec, scene.step), spec)


ATTACKS = (
    Attack(
        name="fraud-out-of-reach",
        change="the spec declares no anchor between the first and the last state, and a step far from both is noisy",
        forge=forge,
        screens=accepted("the step is as long and as smooth as an honest one"),
        exact=inconclusive("the sampled steps lie further from the anchor than the window, and the report says so"),
        full=rejected("projection summary", "state"),
        tolerant=inconclusive("as in the exact audit"),
    ),
)
