"""The common part of forgers: copy a run, edit its records, and make it consistent again.

A careful forger calls `seal`; a clumsy one does not. `seal` computes roots, tiles, offsets and claim from the edited
records. After that, only a replay, a screen or a kept claim digest can detect the forgery.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tallystick.documents.files import write_atomically
from tallystick.documents.targets import require_empty_folder
from tallystick.errors import UsageError
from tallystick.frameworks.torch.tensors import from_tensor
from tallystick.frameworks.torch.training.summaries import Summariser
from tallystick.recorders.run_recorder import header_of
from tallystick.store.log import read_lines
from tallystick.store.log_writer import LogWriter
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.claim import Claim, Log
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.recipe import Recipe
from tallystick.transcripts.record import AnchorRecord, HeaderRecord, Record, StepRecord, anchor_file, read_record
from tallystick.transcripts.spec import Spec
from tallystick.transcripts.summary import StateSummary
from tallystick.workloads.names import weights_of
from tallystick.workloads.plan import projection_seed

SEGMENT_STEPS_MIN = 4


@dataclass(frozen=True)
class Scene:
    """The place of a forgery in a run, as anchor numbers: the segment that starts at the middle anchor."""

    before: int
    middle: int
    after: int
    last: int

    @property
    def step(self) -> int:
        """A step in the middle of the segment, with recorded steps of the same segment on both sides."""
        return (self.middle + self.after) // 2


def find_scene(run: RunDirectory) -> Scene:
    """The scene of a run; raises `UsageError` if the run is too short to be forged in its middle."""
    marks = [record.index for record in read_records(run) if isinstance(record, AnchorRecord)]
    place = (len(marks) - 1) // 2
    if len(marks) < 3 or marks[place + 1] - marks[place] < SEGMENT_STEPS_MIN:
        raise UsageError(f"{run.path}: too short to be forged; it takes three anchors, four steps apart")
    return Scene(marks[place - 1], marks[place], marks[place + 1], marks[-1])


def copy_run(run: Path, out: Path) -> RunDirectory:
    """Copy a finished run to `out` for editing; raises `UsageError` if `out` is not empty."""
    RunDirectory(run).claim()
    require_empty_folder(out)
    shutil.copytree(run, out, dirs_exist_ok=True)
    return RunDirectory(out)


def copy_data(run: Path, out: Path) -> RunDirectory:
    """A new run directory with only the data of `run`, and its step graph if there is one."""
    require_empty_folder(out)
    honest, forged = RunDirectory(run), RunDirectory(out)
    shutil.copytree(honest.data_path, forged.data_path)
    if honest.graph_path.exists():
        shutil.copytree(honest.graph_path.parent, forged.graph_path.parent)
    return forged


def recipe_of(spec: Spec) -> Recipe:
    """The recipe of a spec; raises `UsageError` for a run of a custom training loop."""
    if spec.recipe is None:
        raise UsageError("a run of a custom training loop has no recipe, and this forgery trains from one")
    return spec.recipe


def read_records(run: RunDirectory) -> list[Record]:
    """All records of a run, in order."""
    return [read_record(line, "transcript.jsonl") for line in read_lines(run.transcript_path)]


def place_of_step(records: Iterable[Record], step: int) -> int:
    """The position of step `step` in the list of records."""
    return next(place for place, r in enumerate(records) if isinstance(r, StepRecord) and r.index == step)


def edit_lines(run: RunDirectory, edit: Callable[[list[bytes]], Iterable[bytes]]) -> None:
    """Rewrite the transcript and nothing else, as a clumsy forger does."""
    lines = edit(list(read_lines(run.transcript_path)))
    run.transcript_path.write_bytes(b"".join(line + b"\n" for line in lines))


def write_records(run: RunDirectory, records: Iterable[Record]) -> Claim:
    """Rewrite the transcript, relink the steps, and seal the run."""
    lines = [record.to_bytes() for record in relink(records)]
    run.transcript_path.write_bytes(b"".join(line + b"\n" for line in lines))
    return seal(run)


def seal(run: RunDirectory) -> Claim:
    """Write tiles, offsets and claim as the recorder would have written them for these records."""
    spec, environment = run.spec(), run.environment()
    shutil.rmtree(run.path / "tiles", ignore_errors=True)
    anchors = [record for record in read_records(run) if isinstance(record, AnchorRecord)]
    claim = Claim(
        spec=spec.identity,
        environment=environment.digest_as("environment"),
        data=spec.data_root,
        transcript=_log(run.transcript_path),
        trace=_log(run.trace_path),
        final_state=anchors[-1].digest if anchors else run.claim().final_state,
        weights=state_digest(weights_of(read_anchor(run, anchors[-1].index))) if anchors else run.claim().weights,
    )
    write_atomically(run.claim_path, claim.to_bytes())
    return claim


def relink(records: Iterable[Record]) -> list[Record]:
    """The records with every `pre` summary set to the `post` of the step before it."""
    linked: list[Record] = []
    summary: StateSummary | None = None
    for record in records:
        if isinstance(record, StepRecord):
            assert summary is not None  # an anchor stands before the first step
            linked.append(record.model_copy(update={"pre": summary}))
            summary = record.post
        else:
            linked.append(record)
            if isinstance(record, AnchorRecord) and summary is None:
                summary = record.summary
    return linked


def replace_environment(run: RunDirectory, environment: Environment) -> None:
    """Write another environment to its file, the header and the claim."""
    write_atomically(run.environment_path, environment.to_bytes())
    header = header_of(run.spec(), environment)
    write_records(run, [header if isinstance(record, HeaderRecord) else record for record in read_records(run)])


def read_anchor(run: RunDirectory, mark: int) -> dict[str, Tensor]:
    """The state of anchor `mark`."""
    return run.anchors.read(mark)


def anchor_before(run: RunDirectory, mark: int) -> int:
    """The last anchor before anchor `mark`."""
    return max(r.index for r in read_records(run) if isinstance(r, AnchorRecord) and r.index < mark)


def replace_anchor(run: RunDirectory, mark: int, state: State) -> None:
    """Put another state into anchor `mark`: file, record, summaries, roots and claim."""
    for later in (r.index for r in read_records(run) if isinstance(r, AnchorRecord) and r.index > mark):
        if mark in run.anchors.elsewhere(later).values():  # it keeps the tensors that it had
            write_state(run.path / anchor_file(later), run.anchors.read(later))
    write_state(run.path / anchor_file(mark), state)
    summariser = summariser_of(run, state)
    at_step, at_anchor = summariser.after_step(max(1, mark)), summariser.at_anchor()
    digest = state_digest(state)

    def replaced(record: Record) -> Record:
        if isinstance(record, AnchorRecord) and record.index == mark:
            return record.model_copy(update={"digest": digest, "summary": at_anchor})
        if isinstance(record, StepRecord) and record.index == mark:
            return record.model_copy(update={"post": at_step})
        return record

    write_records(run, [replaced(record) for record in read_records(run)])


def summariser_of(run: RunDirectory, state: State) -> Summariser:
    """A summariser that computes what the recorder would write about a model in `state`."""
    spec = run.spec()
    weights = {name: from_tensor(tensor) for name, tensor in state.items() if name.startswith("weights.")}
    return Summariser(spec.recorded, projection_seed(spec), weights, lambda: state, run.write_blob)


def _log(path: Path) -> Log:
    return LogWriter(path).close()
