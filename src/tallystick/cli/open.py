"""`tally open`: one record with its proof, or the operators of one step or call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.recorders.step_opening import Subject
    from tallystick.store import InferenceDirectory, RunDirectory
    from tallystick.transcripts import Opening


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(name="open")(open_run)


def open_run(
    run: Path = typer.Argument(help="A run directory."),
    index: int | None = typer.Option(None, "--record", min=0, help="The record's place in the transcript."),
    step: int | None = typer.Option(None, min=1, help="The step, or the call of a model, that is opened."),
    operators: bool = typer.Option(False, "--operators", help="Open its operators: replay it and keep every value."),
    out: Path | None = typer.Option(None, help="Where the operators go."),
    node: int | None = typer.Option(None, min=0, help="Open this operator alone, with its inclusion proofs."),
    tensors: bool = typer.Option(True, "--tensors/--no-tensors", help="Keep the values, not only their digests."),
    device: str = typer.Option("cpu", help="Replay on cpu or cuda."),
) -> None:
    """Open one record of a transcript with its proof, or every operator of a step under a root of its own."""
    if not operators and (node is not None or out is not None):
        raise UsageError("`tally open RUN --step S --operators --out DIR [--node N]`")
    if operators:
        return _open_operators(run, step, out, node, tensors, device)
    if (index is None) == (step is None):
        raise UsageError("`tally open RUN --record I`, or `tally open RUN --step S`")
    return _open_record(run, index, step or 0)


def _open_record(run: Path, index: int | None, step: int) -> None:
    from tallystick.cli.output import print_json
    from tallystick.commitments import parse
    from tallystick.store import RunDirectory, claims_inference, open_line

    if claims_inference(run):
        raise UsageError(f"{run}: holds calls of a model; `tally open RUN --step C --operators --out DIR`")
    directory = RunDirectory(run)
    log = directory.claim().transcript
    place = index if index is not None else _place_of(directory, log.size, step)
    opened = open_line(directory.transcript_path, place, log.size)
    opened.check(log)
    print_json(
        {
            "index": place,
            "proof": [value.hex() for value in opened.proof],
            "record": parse(opened.line, "record"),
            "root": str(log.root),
            "size": log.size,
        }
    )


def _place_of(run: RunDirectory, size: int, step: int) -> int:
    """Binary search: the places of records grow with their steps."""
    from tallystick.store import open_line
    from tallystick.transcripts import HeaderRecord, StepRecord, read_record

    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        record = read_record(open_line(run.transcript_path, middle, size).line, f"record {middle}")
        reached = -1 if isinstance(record, HeaderRecord) else record.index
        is_before = reached < step or (reached == step and record.kind == "failed")
        low, high = (middle + 1, high) if is_before else (low, middle)
    if low < size:
        found = read_record(open_line(run.transcript_path, low, size).line, f"record {low}")
        if isinstance(found, StepRecord) and found.index == step:
            return low
    raise UsageError(f"--step {step}: the transcript holds no such step")


def _open_operators(
    run: Path, step: int | None, out: Path | None, node: int | None, with_tensors: bool, device: str
) -> None:
    from tallystick.cli.output import print_json, talk
    from tallystick.store import InferenceDirectory, RunDirectory, claims_inference

    if step is None or out is None:
        raise UsageError("`tally open RUN --step S --operators --out DIR`")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: cpu or cuda")
    if claims_inference(run):
        opening = open_call(InferenceDirectory(run), step, out, node, with_tensors, device)
    else:
        opening = open_step(RunDirectory(run), step, out, node, with_tensors, device)
    what = f"operator {node}" if node is not None else f"{opening.operators.size} operators"
    talk().print(f"{out}: {what} of record {opening.index}; judge with `tally judge {out}`", soft_wrap=True)
    print_json({"opening": str(opening.identity), "operators": opening.operators.to_json()})


def open_step(
    run: RunDirectory, step: int, out: Path, node: int | None = None, with_tensors: bool = True, device: str = "cpu"
) -> Opening:
    """Open the operators of a step of a run that has a step graph; raises what `open_operators` raises."""
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.recorders.step_opening import open_operators

    return open_operators(_step(run, step, device), out, TorchEngine(device), node, with_tensors)


def open_call(
    run: InferenceDirectory,
    number: int,
    out: Path,
    node: int | None = None,
    with_tensors: bool = True,
    device: str = "cpu",
) -> Opening:
    """Open the operators of a recorded call of a model; raises what `open_operators` raises."""
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.recorders.step_opening import open_operators

    return open_operators(_call(run, number), out, TorchEngine(device), node, with_tensors)


def _step(run: RunDirectory, step: int, device: str) -> Subject:
    """Replay from the anchor before `step` up to it; what it reads is then bound."""
    import torch

    from tallystick.audits import Policy
    from tallystick.audits.evidence import gather_evidence
    from tallystick.cli.audit import THREADS_MAX
    from tallystick.errors import ProofError
    from tallystick.frameworks.torch.graph_replayer import GraphReplayer
    from tallystick.recorders.step_opening import Subject
    from tallystick.store import open_line

    evidence = gather_evidence(run, Policy())
    bad = [finding for finding in evidence.findings.seen if not finding.agrees]
    if bad:
        raise ProofError(f"{run.path}: {bad[0].name}: {bad[0].detail}")
    if evidence.program is None:
        raise UsageError(f"{run.path}: the run has no step graph; its steps have no operators to open")
    log = evidence.claim.transcript
    place = _place_of(run, log.size, step)
    torch.set_num_threads(min(evidence.environment.threads, THREADS_MAX))
    replayer = GraphReplayer(evidence.spec, evidence.program, device)
    start = max(anchor for anchor in evidence.anchors if anchor < step)
    replayer.restore(evidence.state(start))
    for index in range(start + 1, step):
        replayer.step(index)
    graph, bindings = evidence.program.graph, replayer.bindings(step)
    record = open_line(run.transcript_path, place, log.size)
    return Subject(evidence.claim.identity, log, record, graph, bindings, replayer.carried)


def _call(run: InferenceDirectory, number: int) -> Subject:
    from tallystick.audits import Policy
    from tallystick.audits.inference import gather_calls
    from tallystick.errors import ProofError
    from tallystick.recorders.step_opening import Subject
    from tallystick.store import open_line
    from tallystick.transcripts.program import BATCH

    calls = gather_calls(run, Policy())
    bad = [finding for finding in calls.findings.seen if not finding.agrees]
    if bad:
        raise ProofError(f"{run.path}: {bad[0].name}: {bad[0].detail}")
    if number > len(calls.records):
        raise UsageError(f"--step {number}: {len(calls.records)} calls were recorded")
    inputs = {f"{BATCH}{name}": tensor for name, tensor in calls.inputs(calls.records[number - 1]).items()}
    bindings = {**calls.constants, **calls.weights(), **inputs}
    log = calls.claim.transcript
    return Subject(
        calls.claim.identity, log, open_line(run.transcript_path, number - 1, log.size), calls.graph, bindings
    )
