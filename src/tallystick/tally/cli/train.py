"""`tally train`, `thin`, `record-inference`, and the examples that are shipped."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Any, Final

import typer

from tallystick.core import safetensors
from tallystick.core.canonical_json import Json
from tallystick.core.errors import UsageError, suggestion
from tallystick.core.files import require_writable_folder
from tallystick.engines.torch import engine as torch_engine
from tallystick.engines.torch.training import trainer
from tallystick.formats.data import corpus as corpora
from tallystick.formats.store import keeping, run as runs
from tallystick.formats.store.folders import RUN, require_folder
from tallystick.programs import files as program_files
from tallystick.recording import inference, training as recording_training
from tallystick.tally import training
from tallystick.tally.cli.entry import Terminated
from tallystick.tally.cli.options import AlwaysJson, ClaimAsJson, RunDevice, run_in
from tallystick.tally.cli.output import corpus_task, print_json, progress_bar, show, talk

# `tally train`: train by a recipe and record every step.


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
    json: ClaimAsJson = False,
) -> None:
    """Train by a recipe and record every step.

    The data is committed to first; every step goes into the run directory.
    """
    if (resume is None) == (config is None) or (config is not None and out is None):
        raise UsageError("`tally train CONFIG.toml --out RUN`, or `tally train --resume RUN`")
    folder = resume or out
    assert folder is not None  # held by the usage check above
    try:
        _require_free(config, folder, keep, anchors)
        import torch

        if threads:
            torch.set_num_threads(threads)
        kept: dict[str, Any] = {"keep": keep, "anchors": anchors}
        if config is not None:
            read = recording_training.read_config(config)
            with _watched(read.recipe.training.steps, read.source) as (progress, tokenized):
                kept |= {"graph": graph, "say": partial(talk().print, soft_wrap=True), "tokenized": tokenized}
                run = training.train(config, folder, progress=progress, **kept)
        else:
            interrupted = runs.RunDirectory(folder).spec().recipe
            with _watched(interrupted.training.steps if interrupted else 0) as (progress, _):
                run = training.train(resume=folder, progress=progress, **kept)
    except (KeyboardInterrupt, Terminated) as error:
        raise type(error)(_interrupted(folder)) from None
    recording_training.draw_losses(run)
    claim = run.claim()
    if json:
        print_json({"claim": str(claim.identity), "transcript": claim.transcript.to_json()})
        return
    talk().print(f"{folder}: {claim.transcript.size} records; loss curve in {folder / 'loss.png'}")
    talk().print("Publish this digest; whoever keeps it can tell a forgery that recomputes everything else:")
    print(claim.identity)


def _require_free(config: Path | None, folder: Path, keep: str | None, anchors: str | None) -> None:
    """Refuse whatever can be refused before PyTorch is loaded."""
    keeping.AnchorKeeping.of(keep, anchors)
    if config is not None:
        recording_training.read_config(config)
        require_writable_folder(folder)
        if (folder / runs.LOCK).exists():
            runs.RunLock(folder).release()  # who records into it is the better reason
        runs.require_free(folder)
    elif not (folder / runs.LOCK).exists():
        require_folder(folder, RUN)


def _interrupted(folder: Path) -> str:
    """What Ctrl-C or SIGTERM leaves behind, and what goes on from there."""
    run = runs.RunDirectory(folder)
    if run.claim_path.exists():
        return f"interrupted; {folder} is finished"
    if run.has_recipe:
        return f"interrupted; `tally train --resume {quote(str(folder))}` goes on with it"
    return "interrupted before the first record; the same command begins again"


@contextmanager
def _watched(steps: int, source: Path | None = None) -> Iterator[tuple[recording_training.Progress, corpora.Hashed]]:
    """A bar for the steps, and above it one for the bytes of a corpus that are tokenized first."""
    with progress_bar() as bar:
        tokenized = corpus_task(bar, "tokenizing", source)
        task = bar.add_task("training", total=steps, seen="")

        def progress(index: int, seen: trainer.Observation, overhead: float) -> None:
            rate = bar.tasks[-1].speed or 0.0
            text = f"loss {seen.loss:.4f}  {rate:.1f} step/s  recording {100 * overhead:.1f} %"
            bar.update(task, completed=index, seen=text)

        yield progress, tokenized


# `tally thin`: remove anchors of a finished run.


def thin(
    run: Path = typer.Argument(help="A finished run directory."),
    keep: str = typer.Option(..., metavar="N|every:K", help="The anchors that stay: the last N, or every K-th."),
    json: AlwaysJson = True,
) -> None:
    """Remove anchors of a finished run, to save disk.

    The first and the last anchor always stay. The claim stays as it is: an audit replays from the anchors that are
    left, and leaves open what lies too far behind them.
    """
    chosen, directory = keeping.Retention.parse(keep), run_in(run)
    directory.claim()
    with runs.RunLock(run):
        marks = keeping.recorded_anchors(directory)
        kept = chosen.kept(marks)
        removed = keeping.thin_anchors(run, marks, kept)
    talk().print(f"{run}: {len(removed)} anchors removed, {len(kept)} of {len(marks)} stay", soft_wrap=True)
    print_json({"kept": [*sorted(kept)], "removed": [*removed]})


# `tally record-inference`: run a graph on given inputs and record the calls.


def record_inference(
    graph: Path = typer.Argument(help="A graph; its constants stand beside it."),
    inputs: list[Path] = typer.Option(..., "--inputs", help="A safetensors file of inputs; one call for each."),
    weights: Path = typer.Option(..., "--weights", help="Weights and buffers, as safetensors."),
    out: Path = typer.Option(..., "--out", help="The directory to write."),
    device: RunDevice = "cpu",
    json: ClaimAsJson = False,
) -> None:
    """Run a graph on given inputs and record the calls.

    Every file of inputs is one call; its inputs and outputs are kept.
    """
    require_writable_folder(out)
    program, constants = program_files.load_program(graph)
    prefix = "inputs."
    calls = [{name.removeprefix(prefix): t for name, t in safetensors.read_state(path).items()} for path in inputs]
    modules = program_files.load_modules(graph, program).paths
    claim = inference.record_graph_inference(
        program,
        constants,
        safetensors.read_state(weights),
        calls,
        torch_engine.TorchEngine(device),
        out,
        device,
        modules,
    )
    talk().print(f"{out}: {claim.transcript.size} calls", soft_wrap=True)
    show(claim.to_json(), claim.identity, json)


# `tally example`: the recipes and scripts that are shipped, with their data.

KINDS: Final = {".toml": "tally train {file} --out run", ".py": "python {file} run"}


@dataclass(frozen=True)
class Example:
    """A recipe, a policy or a script of `folder`; `files` are itself and the data it reads."""

    folder: Path
    files: tuple[Path, ...]
    about: str
    next_command: str

    @property
    def name(self) -> str:
        """What `tally example` calls it."""
        return _name(self.files[0])

    def to_json(self) -> dict[str, Json]:
        """One entry of the list."""
        return {"about": self.about, "files": [str(file) for file in self.files], "name": self.name}


def example(
    name: str | None = typer.Argument(None, help="The example to write; without it, all are listed."),
    out: Path = typer.Option(Path("."), help="The folder to write it to."),
    json: bool = typer.Option(False, "--json", help="Print the list, or the files written, as JSON."),
) -> None:
    """List the shipped examples, or write one here.

    A recipe comes with its data. A file that is there with other content is kept, and nothing is written.
    """
    with resources.as_file(resources.files("tallystick") / "examples") as folder:
        shipped = {each.name: each for each in map(_read, sorted(folder.iterdir())) if each is not None}
        if name is None:
            _list(shipped, json)
            return
        chosen = shipped.get(_name(Path(name)))
        if chosen is None:
            near = suggestion(_name(Path(name)), shipped)
            raise UsageError(f"no such example {name}{near}; `tally example` lists all")
        _tell(chosen, _write(chosen, out), out, json)


def _name(path: Path) -> str:
    stem = path.name.removesuffix(path.suffix) if path.suffix in KINDS else path.name
    return stem.replace("_", "-")


def _read(path: Path) -> Example | None:
    """The example whose first file is `path`; None for a file or folder that is no example."""
    if path.suffix not in KINDS:
        return None
    text = path.read_text("utf-8")
    settings = tomllib.loads(text) if path.suffix == ".toml" else {"training": {}}
    command = KINDS[path.suffix].format(file=path.name) if "training" in settings else ""
    source = settings.get("data", {}).get("path")
    files = (path, *(sorted((path.parent / source).parent.iterdir()) if source else ()))  # the licence lies there too
    about = text.partition("\n")[0].strip('#" ')
    return Example(path.parent, tuple(each.relative_to(path.parent) for each in files), about, command)


def _list(shipped: dict[str, Example], as_json: bool) -> None:
    if as_json:
        print_json([one.to_json() for one in shipped.values()])
        return
    width = max(map(len, shipped))
    for name, one in shipped.items():
        print(f"{name:{width}}  {one.about}")


def _write(example: Example, out: Path) -> list[Path]:
    """Write the files that are not there yet; raises `UsageError` before any of them where one has other content."""
    contents = {out / file: (example.folder / file).read_bytes() for file in example.files}
    for path, content in contents.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == content):
            raise UsageError(f"{path} is there with other content; choose another folder with --out")
    missing = [path for path in contents if not path.exists()]
    for path in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[path])
    return missing


def _tell(example: Example, written: list[Path], out: Path, as_json: bool) -> None:
    if as_json:
        print_json({"name": example.name, "written": [str(path) for path in written]})
        return
    for path in written:
        print(path)
    if not written:
        talk().print(f"{example.name} is there already, unchanged")
    if example.next_command:
        place = "" if out == Path(".") else f"cd {quote(str(out))} && "
        talk().print(f"next: {place}{example.next_command}", soft_wrap=True)
