"""`tallystick.train` and `open_operators`, and one step under a profiler: what runs PyTorch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from shlex import quote
from typing import Any

from tallystick.audits.opening import (
    gather_records,
    gather_whole,
    graph_replayer,
    open_operators as write_opening,
    source_of_call,
    source_of_step,
)
from tallystick.core.errors import UsageError
from tallystick.engines.torch.engine import TorchEngine, profile_graph
from tallystick.engines.torch.environment import HOST, this_machine
from tallystick.engines.torch.tensors import require_device
from tallystick.formats.data.corpus import Hashed, silent as unseen
from tallystick.formats.openings import Opening
from tallystick.formats.recipe import Recipe
from tallystick.formats.store.directories import InferenceDirectory, OpeningDirectory, read_statement
from tallystick.formats.store.keeping import AnchorKeeping
from tallystick.formats.store.run import RunDirectory
from tallystick.formats.store.traces import TraceStatement
from tallystick.recording.timelines.imported import TraceSubject, import_profile
from tallystick.recording.timelines.torch_calls import DevicePlaces
from tallystick.recording.training import (
    Config,
    Progress,
    Say,
    read_config,
    resume as resume_training,
    silent,
    train as train_recipe,
)

# `tallystick.open_operators`: every operator of one recorded step or call, with proofs.


def open_operators(
    run: RunDirectory | InferenceDirectory | Path | str,
    step: int,
    out: Path | str,
    *,
    node: int | None = None,
    tensors: bool = True,
    device: str = "cpu",
) -> Opening:
    """Replay one step of a run, or one recorded call of a model, and write the values of its operators into `out`.

    Args:
        run: the directory of a run that has a step graph, or of recorded calls.
        step: the step or the call, counted from 1.
        out: a directory that is empty or not there.
        node: open this operator alone, with its inclusion proofs.
        tensors: keep the values, not only their digests.
        device: replay on `cpu` or `cuda`.

    Raises:
        ProofError: the run is not consistent.
        UnavailableError: the run has no step graph, or a file of it is missing, or the device is not here.
        UsageError: there is no such step or node, `out` is not empty, or the device is unknown.
    """
    require_device(device)
    path = Path(run) if isinstance(run, str | Path) else run.path
    statement = read_statement(path)
    if isinstance(statement, OpeningDirectory):
        raise UsageError(f"{path}: holds opened operators already; `tally judge {quote(str(path))}` judges them")
    if isinstance(statement, InferenceDirectory):
        source = source_of_call(gather_whole(statement), step)
    else:
        source = source_of_step(gather_records(statement), step, lambda evidence: graph_replayer(evidence, device))
    return write_opening(source, Path(out), TorchEngine(device), node, tensors)


# `tallystick.train`: train by a recipe and record every step.


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
    named = {"source": source, "tokenizer": tokenizer, "initial": initial}
    files: dict[str, Any] = {name: Path(path) for name, path in named.items() if path is not None}
    config = config._replace(**files)
    train_recipe(config, Path(out), progress, say if graph else None, keeping, tokenized)
    return RunDirectory(Path(out))


# Replays one step of a run under torch.profiler, with every operator marked, and keeps its timeline.

SOURCE = "torch.profiler, a replay of the step graph"


def profile_step(run: RunDirectory, step: int, out: Path, device: str = "cpu") -> TraceStatement:
    """Replay a step on this machine and write its timeline into the new folder `out`.

    Raises:
        ProofError: the run is not consistent.
        UnavailableError: the run has no step graph, a file of it is missing, or `out` is not empty.
        UsageError: there is no such step, or the device is unknown.
    """
    require_device(device)
    source = source_of_step(gather_records(run), step, lambda evidence: graph_replayer(evidence, device))
    subject = TraceSubject(this_machine(), DevicePlaces(HOST), source.graph, source.claim, step)
    with tempfile.TemporaryDirectory(prefix="tally-profile-") as folder:
        file = Path(folder) / "kineto.json"
        profile_graph(source.graph, source.bindings, step, file, device)
        return import_profile([file], out, subject, SOURCE)
