"""The run names another stack than the one that computed it, so that an exact replay seems impossible."""

from __future__ import annotations

from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, inconclusive, rejected
from tallystick.attacks.forging import copy_run, replace_environment
from tallystick.attacks.wrong_recipe import higher_rate, training_by
from tallystick.store.run import RunDirectory
from tallystick.transcripts.environment import Environment

OTHER_TORCH = "1.13.1"
OTHER_PYTHON = "3.99.0"


def forge_file(run: Path, out: Path) -> None:
    """Edit the environment file and nothing else."""
    forged = copy_run(run, out)
    forged.environment_path.write_bytes(other_stack(forged).to_bytes())


def forge(run: Path, out: Path) -> None:
    """Train from another recipe, and name another stack in environment, header and claim."""
    training_by(higher_rate)(run, out)
    forged = RunDirectory(out)
    replace_environment(forged, other_stack(forged))


def forge_cosmetics(run: Path, out: Path) -> None:
    """Name another version of Python, which changes no bit of the result."""
    forged = copy_run(run, out)
    replace_environment(forged, forged.environment().model_copy(update={"python": OTHER_PYTHON}))


def other_stack(run: RunDirectory) -> Environment:
    """The stated environment with another version of PyTorch."""
    return run.environment().model_copy(update={"torch": OTHER_TORCH})


OTHER_STACK = "different stack: an exact audit does not guess, and says where to go: that stack, or --tolerant"
COSMETIC = "the version of Python decides no bit of the result, so no replay can tell"

ATTACKS = (
    Attack(
        name="environment-edited",
        change="environment.json names another version of PyTorch",
        forge=forge_file,
        screens=rejected("environment"),
        exact=rejected("environment"),
        tolerant=rejected("environment"),
        claim=rejected("environment"),
    ),
    Attack(
        name="environment-forged",
        change="a learning rate 1 % too high hides behind another version of PyTorch in environment, header and claim",
        forge=forge,
        screens=accepted("nothing is replayed"),
        exact=inconclusive(OTHER_STACK),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="environment-cosmetics-forged",
        change="the honest run names another version of Python in environment, header and claim",
        forge=forge_cosmetics,
        screens=accepted(COSMETIC),
        exact=accepted(COSMETIC),
        tolerant=accepted(COSMETIC),
    ),
)
