"""`tallystick.train`: train by a recipe and record every step."""

from __future__ import annotations

from pathlib import Path

from tallystick.errors import UsageError
from tallystick.recorders.config import read_config
from tallystick.recorders.training import Progress, Say, resume as resume_training, silent, train as train_recipe
from tallystick.store.run import RunDirectory
from tallystick.transcripts.recipe import Recipe


def train(
    recipe: Recipe | Path | str | None = None,
    out: Path | str | None = None,
    *,
    source: Path | str | None = None,
    resume: Path | str | None = None,
    graph: bool = True,
    progress: Progress = silent,
    say: Say = lambda _: None,
) -> RunDirectory:
    """Train on committed data and record every step, or finish an interrupted run.

    Args:
        recipe: the recipe, or its file as TOML; such a file names its data itself.
        out: the run directory to write.
        source: the file to train on, for a `Recipe`.
        resume: the directory of an interrupted run, in the place of `recipe` and `out`.
        graph: keep the step as a graph, to be replayed from it.
        progress: called after each step with its number, its observation and the share of time spent on recording.
        say: called with a line where the step cannot be kept as a graph.

    Returns the run; `run.claim().identity` is the digest to publish.

    Raises:
        MalformedError: the recipe is none; the line names the field.
        UsageError: `out` holds something else, the run to resume is finished, or arguments are missing.
        UnavailableError: the source, the device, a library or the disk is missing, another process records into the
            directory, or a step crashed.
    """
    if resume is not None and recipe is None and out is None:
        resume_training(Path(resume), progress)
        return RunDirectory(Path(resume))
    if recipe is None or out is None or resume is not None:
        raise UsageError("train: a recipe and `out`, or `resume`")
    read, named = (recipe, None) if isinstance(recipe, Recipe) else read_config(Path(recipe))
    data = named if source is None else Path(source)
    train_recipe(read, data, Path(out), progress, say if graph else None)
    return RunDirectory(Path(out))
