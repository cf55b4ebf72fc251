"""`tallystick.train`: train by a recipe and record every step."""

from __future__ import annotations

from pathlib import Path

from tallystick.datasets.shards import Hashed, silent as unseen
from tallystick.errors import UsageError
from tallystick.recorders.config import Config, read_config
from tallystick.recorders.training import Progress, Say, resume as resume_training, silent, train as train_recipe
from tallystick.store.keeping import AnchorKeeping
from tallystick.store.run import RunDirectory
from tallystick.transcripts.recipe import Recipe


def train(
    recipe: Recipe | Path | str | None = None,
    out: Path | str | None = None,
    *,
    source: Path | str | None = None,
    tokenizer: Path | str | None = None,
    initial: Path | str | None = None,
    resume: Path | str | None = None,
    graph: bool = True,
    progress: Progress = silent,
    say: Say = lambda _: None,
    keep: str | None = None,
    anchors: str | None = None,
    tokenized: Hashed = unseen,
) -> RunDirectory:
    """Train on committed data and record every step, or finish an interrupted run.

    Args:
        recipe: the recipe, or its file as TOML; such a file names its data itself.
        out: the run directory to write.
        source: the file or the corpus to train on, for a `Recipe`.
        tokenizer: the file of the tokenizer that a `Recipe` names by its digest.
        initial: the directory of the weights that a `Recipe` names by their digest: of a model, or of an earlier run.
        resume: the directory of an interrupted run, in the place of `recipe` and `out`.
        graph: keep the step as a graph, to be replayed from it.
        progress: called after each step with its number, its observation and the share of time spent on recording.
        tokenized: called with the number of bytes of a corpus that were tokenized since the last call.
        say: called with a line where the step cannot be kept as a graph.
        keep: which anchors stay on the disk besides the first and the last: the last `N`, or `every:K`; by default all.
        anchors: the URL of a store that gets a copy of every anchor, as `file://…` or `s3://…`; `zstd::URL` compresses.

    Returns the run; `run.claim().identity` is the digest to publish.

    Raises:
        MalformedError: the recipe is none; the line names the field.
        UsageError: `out` holds something else, the run to resume is finished, or arguments are missing.
        UnavailableError: the source, the device, a library or the disk is missing, another process records into the
            directory, or a step crashed.
    """
    keeping = AnchorKeeping.of(keep, anchors)
    if resume is not None and recipe is None and out is None:
        resume_training(Path(resume), progress, keeping)
        return RunDirectory(Path(resume))
    if recipe is None or out is None or resume is not None:
        raise UsageError("train: a recipe and `out`, or `resume`")
    config = Config(recipe) if isinstance(recipe, Recipe) else read_config(Path(recipe))
    data = config.source if source is None else Path(source)
    file = config.tokenizer if tokenizer is None else Path(tokenizer)
    say_why = say if graph else None
    weights = config.initial if initial is None else Path(initial)
    files = {"tokenizer": file, "initial": weights}
    train_recipe(config.recipe, data, Path(out), progress, say_why, keeping, tokenized=tokenized, **files)
    return RunDirectory(Path(out))
