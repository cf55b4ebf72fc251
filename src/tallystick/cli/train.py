"""`tally train`: train by a recipe and record every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypedDict

import typer

from tallystick.cli.signals import Terminated
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.datasets.shards import Hashed
    from tallystick.recorders.training import Progress
    from tallystick.transcripts.claim import Claim


class KeptAnchors(TypedDict):
    """Which anchors stay on the disk, and the URL of the store that gets a copy of each."""

    keep: str | None
    anchors: str | None


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(train)


def train(
    config: Path | None = typer.Argument(None, help="The recipe, as TOML."),
    out: Path | None = typer.Option(None, help="The run directory to write."),
    resume: Path | None = typer.Option(None, help="An interrupted run directory to finish."),
    threads: int = typer.Option(0, min=0, help="Threads to train with; 0 takes PyTorch's own choice."),
    graph: bool = typer.Option(True, "--graph/--no-graph", help="Keep the step as a graph, to be replayed from it."),
    keep: str | None = typer.Option(
        None, metavar="N|every:K", help="The anchors that stay: the last N, or every K-th; by default all."
    ),
    anchors: str | None = typer.Option(
        None, metavar="URL", help="A store that gets a copy of every anchor; `zstd::URL` compresses them."
    ),
    json: bool = typer.Option(False, "--json", help="Print the claim as JSON."),
) -> None:
    """Train by a recipe and record every step.

    The data is committed to first; every step goes into the run directory.
    """
    if (resume is None) == (config is None) or (config is not None and out is None):
        raise UsageError("`tally train CONFIG.toml --out RUN`, or `tally train --resume RUN`")
    folder = resume or out
    assert folder is not None  # held by the usage check above
    try:
        claim = _trained(config, folder, resume is None, graph, threads, {"keep": keep, "anchors": anchors})
    except (KeyboardInterrupt, Terminated) as error:
        raise type(error)(_interrupted(folder)) from None
    _draw_losses(folder)
    _report(claim, folder, json)


def _trained(
    config: Path | None, folder: Path, is_new: bool, with_graph: bool, threads: int, kept: KeptAnchors
) -> Claim:
    """Train or go on; whatever can be refused is refused before PyTorch is loaded."""
    from tallystick.documents.targets import require_writable_folder
    from tallystick.recorders.config import read_config
    from tallystick.store.folders import RUN, require_folder
    from tallystick.store.keeping import AnchorKeeping
    from tallystick.store.lock import LOCK, RunLock, require_free

    AnchorKeeping.of(kept["keep"], kept["anchors"])
    if is_new and config is not None:
        read_config(config)
        require_writable_folder(folder)
        if (folder / LOCK).exists():
            RunLock(folder).release()  # who records into it is the better reason
        require_free(folder)
    elif not (folder / LOCK).exists():
        require_folder(folder, RUN)
    import torch

    if threads:
        torch.set_num_threads(threads)
    return _run(config, folder, is_new=is_new, with_graph=with_graph, kept=kept)


def _interrupted(folder: Path) -> str:
    """What Ctrl-C or SIGTERM leaves behind, and what goes on from there."""
    from tallystick.store.run import RunDirectory

    run = RunDirectory(folder)
    if run.claim_path.exists():
        return f"interrupted; {folder} is finished"
    if run.has_recipe:
        return f"interrupted; `tally train --resume {quote(str(folder))}` goes on with it"
    return "interrupted before the first record; the same command begins again"


def _run(config: Path | None, folder: Path, is_new: bool, with_graph: bool, kept: KeptAnchors) -> Claim:
    from tallystick.api.training import train
    from tallystick.recorders.config import read_config
    from tallystick.store.run import RunDirectory

    if is_new and config is not None:
        read = read_config(config)
        with _watched(read.recipe.training.steps, read.source) as (progress, tokenized):
            return train(
                config, folder, graph=with_graph, progress=progress, say=_say, tokenized=tokenized, **kept
            ).claim()
    interrupted = RunDirectory(folder).spec().recipe
    with _watched(interrupted.training.steps if interrupted else 0) as (progress, _):
        return train(resume=folder, progress=progress, **kept).claim()


def _say(line: str) -> None:
    from tallystick.cli.output import talk

    talk().print(line, soft_wrap=True)


@contextmanager
def _watched(steps: int, source: Path | None = None) -> Iterator[tuple[Progress, Hashed]]:
    """A bar for the steps, and above it one for the bytes of a corpus that are tokenized first."""
    from tallystick.cli.output import corpus_task, progress_bar
    from tallystick.frameworks.torch.training.trainer import Observation

    with progress_bar() as bar:
        tokenized = corpus_task(bar, "tokenizing", source)
        task = bar.add_task("training", total=steps, seen="")

        def progress(index: int, seen: Observation, overhead: float) -> None:
            rate = bar.tasks[-1].speed or 0.0
            text = f"loss {seen.loss:.4f}  {rate:.1f} step/s  recording {100 * overhead:.1f} %"
            bar.update(task, completed=index, seen=text)

        yield progress, tokenized


def _draw_losses(folder: Path) -> None:
    from tallystick.recorders.curve import draw_losses
    from tallystick.store.run import RunDirectory

    draw_losses(RunDirectory(folder))


def _report(claim: Claim, folder: Path, as_json: bool) -> None:
    from tallystick.cli.output import print_json, talk

    if as_json:
        print_json({"claim": str(claim.identity), "transcript": claim.transcript.to_json()})
        return
    talk().print(f"{folder}: {claim.transcript.size} records; loss curve in {folder / 'loss.png'}")
    talk().print("Publish this digest; whoever keeps it can tell a forgery that recomputes everything else:")
    print(claim.identity)
