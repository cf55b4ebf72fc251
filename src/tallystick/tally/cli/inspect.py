"""`tally digest`, `fsck`, `open`, `diff`: look at files and runs, and hand over what is asked for."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from shlex import quote

import typer

from tallystick.audits import calls as recorded_calls, opening as openings, policy as audit_policy
from tallystick.audits.differences import difference
from tallystick.core import safetensors, tensor_digests
from tallystick.core.canonical_json import Json, parse
from tallystick.core.errors import ProofError, UsageError
from tallystick.core.files import require_writable_folder
from tallystick.formats.store import directories, log as logs, run as runs
from tallystick.formats.store.folders import OPENING, RUN, require_folder
from tallystick.tally import auditing, comparing, training
from tallystick.tally.cli.options import AlwaysJson, AnchorsUrl, AsJson, ReplayDevice, RunFolder, read_marks, run_in
from tallystick.tally.cli.output import existing, keep_freed_memory, print_json, show, talk
from tallystick.verdicts import verdict as verdicts, words

# `tally digest`, `tally fsck`: look at files and runs without replaying anything.


def digest(
    file: Path = typer.Argument(help="A safetensors file."),
    threads: int = typer.Option(0, min=0, help="Hashing threads; 0 takes one per core."),
    canonical: bool = typer.Option(False, "--canonical", help="Refuse any file but the canonical one."),
    json: bool = typer.Option(False, "--json", help="Print the digest of every tensor too, as one JSON object."),
) -> None:
    """Print the state digest of a safetensors file.

    The file may be larger than memory.
    """
    if canonical:
        with safetensors.StateFile(file, canonical=True):
            pass
    digests = tensor_digests.digest_file(file, threads or None)
    if json:
        tensors = {name: str(tensor.digest) for name, tensor in digests.entries}
        print_json({"state": str(digests.digest), "tensors": dict(tensors)})
        return
    print(digests.digest)


def fsck(
    run: RunFolder,
    repair: bool = typer.Option(False, "--repair", help="Write tiles and offsets anew from the records."),
    json: AsJson = False,
) -> None:
    """Recheck every digest of a run; replay nothing.

    Roots, proofs and bindings are checked too. With --repair, files that follow from the records are written again.
    """
    if directories.claims_inference(run):
        if repair:
            raise UsageError("--repair: recorded calls have no files that follow from their records")
        calls = recorded_calls.recheck_calls(directories.InferenceDirectory(run), audit_policy.Policy())
        return _show_checks(run, calls.findings, len(calls.records), "calls", json)
    directory = run_in(run)
    if repair:
        directory.claim()
        for path in (directory.transcript_path, directory.trace_path):
            deque(logs.read_lines(path), maxlen=0)  # a torn line of a finished run is not for mending
            logs.LogWriter(path).close()
    evidence = openings.gather_evidence(directory, audit_policy.Policy())
    return _show_checks(run, evidence.findings, evidence.steps, "steps", json)


def _show_checks(run: Path, findings: verdicts.Findings, count: int, unit: str, as_json: bool) -> None:
    bad = [words.describe(finding) for finding in findings.seen if not finding.agrees]
    if as_json:
        differing: list[Json] = [*bad]
        print_json({"checks": len(findings.seen), "differing": differing, unit: count})
    if bad:
        raise ProofError(f"{run}: " + "; ".join(bad))
    talk().print(f"{run}: {len(findings.seen)} checks agree; {count} {unit}, nothing replayed")


# `tally open`: one record with its proof, the operators of one step or call, or a segment to be audited alone.


def open_run(
    run: RunFolder,
    index: int | None = typer.Option(None, "--record", min=0, help="The record's place in the transcript."),
    step: int | None = typer.Option(None, min=1, help="The step, or the call of a model, that is opened."),
    operators: bool = typer.Option(False, "--operators", help="Open its operators: replay it and keep every value."),
    segment: str | None = typer.Option(
        None, metavar="A..B", help="Open the segment from anchor A to anchor B, so that it can be audited alone."
    ),
    out: Path | None = typer.Option(None, help="Where the operators or the segment go."),
    node: int | None = typer.Option(None, min=0, help="Open this operator alone, with its inclusion proofs."),
    anchors: AnchorsUrl = None,
    tensors: bool = typer.Option(True, "--tensors/--no-tensors", help="Keep the values, not only their digests."),
    device: ReplayDevice = "cpu",
    json: AlwaysJson = True,
) -> None:
    """Open a record, a step by its operators, or a segment.

    A record is printed with its proof. The operators of a step are written to a directory, under a root of their
    own. A segment directory holds two anchors and everything that `tally audit` needs to replay from one to the other.
    """
    if segment is not None:
        if out is None or operators or index is not None or step is not None or node is not None:
            raise UsageError("`tally open RUN --segment A..B --out DIR`")
        start, end = read_marks(segment)
        opened = auditing.open_segment(run, start, end, out, anchors=anchors)
        talk().print(f"{out}: steps {start + 1} to {end}; `tally audit {quote(str(out))}` replays them", soft_wrap=True)
        return print_json({"claim": str(opened.run.claim().identity), "start": start, "end": end})
    if not operators and (node is not None or out is not None):
        raise UsageError("`tally open RUN --step S --operators --out DIR [--node N]`")
    if operators:
        return _open_operators(run, step, out, node, tensors, device)
    if (index is None) == (step is None):
        raise UsageError("`tally open RUN --record I`, or `tally open RUN --step S`")
    return _open_record(run, index, step or 0)


def _open_record(run: Path, index: int | None, step: int) -> None:
    directory = directories.read_statement(run)
    if isinstance(directory, directories.OpeningDirectory):  # below operators there is nothing to open
        raise UsageError(f"{run}: holds opened operators already; `tally judge {quote(str(run))}` judges them")
    if not isinstance(directory, runs.RunDirectory):
        raise UsageError(f"{run}: holds calls of a model; `tally open RUN --step C --operators --out DIR`")
    log = directory.claim().transcript
    if index is not None and index >= log.size:
        raise UsageError(f"--record {index}: there are {log.size} records, counted from 0")
    place = index if index is not None else directory.place_of_step(step, log.size)
    opened = logs.open_line(directory.transcript_path, place, log.size)
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


def _open_operators(
    run: Path, step: int | None, out: Path | None, node: int | None, with_tensors: bool, device: str
) -> None:
    if step is None or out is None:
        raise UsageError("`tally open RUN --step S --operators --out DIR`")
    require_folder(run, RUN, OPENING)
    require_writable_folder(out)
    keep_freed_memory()
    opening = training.open_operators(run, step, out, node=node, tensors=with_tensors, device=device)
    what = f"operator {node}" if node is not None else f"{opening.operators.size} operators"
    talk().print(f"{out}: {what} of record {opening.index}; judge with `tally judge {quote(str(out))}`", soft_wrap=True)
    print_json({"opening": str(opening.identity), "operators": opening.operators.to_json()})


# `tally diff`: where two runs that should be equal begin to differ.


def diff(
    first: Path = typer.Argument(help="A run directory, or one that `tally open --operators` wrote."),
    second: Path = typer.Argument(help="Another one of the same kind."),
    operator: bool = typer.Option(False, "--operator", help="Name the first operator that differs: replay the step."),
    replay: bool = typer.Option(True, "--replay/--no-replay", help="Find the step between two anchors by replaying."),
    device: ReplayDevice = "cpu",
    out: Path | None = typer.Option(None, help="Keep the openings of --operator here; `tally judge` judges them."),
    json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> int:
    """Name where two runs begin to differ.

    Settings, then the first step, the first tensor and, with --operator, the first operator. Exit code 0: equal,
    1: different, 3: nothing differs as far as both go, 4: a file cannot be read.
    """
    for place in (first, second):
        existing(place, "run or opening")
    result = comparing.diff(first, second, operator=operator, replay=replay, out=out, device=device)
    show(result.to_json(), "\n".join(difference.difference_lines(result)), json)
    return result.exit_code
