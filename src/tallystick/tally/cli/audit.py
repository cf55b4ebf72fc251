"""`tally audit`, `verify-segment`, and `attack`, which forges a run to see which audit rejects it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tallystick.audits import policy as audit_policy, training as training_audit
from tallystick.core.canonical_json import Json
from tallystick.core.errors import UsageError
from tallystick.core.files import require_empty_folder, require_writable, write_atomically
from tallystick.database.indexing import audits
from tallystick.formats.store import run as runs
from tallystick.formats.store.folders import RUN, require_folder
from tallystick.tally import audit_over_http, auditing
from tallystick.tally.attacks import catalogue
from tallystick.tally.cli.options import (
    AnchorsUrl,
    AsJson,
    CorpusDirectory,
    PolicyFile,
    TokenFile,
    Verbose,
    device_option,
    from_options,
    open_database,
    read_calibration,
    read_marks,
    read_token,
    repeated,
    show_report,
)
from tallystick.tally.cli.output import keep_freed_memory, print_json, progress_bar, show, talk

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


# `tally audit` and `tally verify-segment`: replay what was recorded and say how far it can be trusted.

CLAIM = typer.Option(None, help="The digest of the claim that was published: sha256:…")
DEVICE = device_option("Replay on cpu or cuda; by default on the device that the spec names.", None)
INITIAL = typer.Option(None, help="The directory of the weights that the run is to begin with.")
HTML = typer.Option(None, "--html", help="Also write the report as one self-contained page.")
REPORT_JSON = typer.Option(False, "--json", help="Print the report as JSON.")
REPORT_DB = typer.Option(
    None, "--db", help="Also add the report to this workload database: a file, or a URL of PostgreSQL."
)

URLS = ("http://", "https://")


def audit(
    context: typer.Context,
    run: str = typer.Argument(help="A finished run directory, or a run in a service: http://HOST/runs/NAME."),
    samples: int | None = typer.Option(None, min=1, help="How many steps to sample."),
    window: int | None = typer.Option(None, min=1, help="The longest replay from an anchor, in steps."),
    nonce: str | None = typer.Option(None, help="Repeat an audit with the nonce it printed."),
    policy: PolicyFile = None,
    claim: str | None = CLAIM,
    corpus: CorpusDirectory = None,
    shards: int | None = typer.Option(None, min=1, help="How many shards of the corpus to tokenize again."),
    initial: Path | None = INITIAL,
    full: bool = typer.Option(False, "--full", help="Replay the whole chain, anchor to anchor."),
    tolerant: bool = typer.Option(False, "--tolerant", help="Judge by calibrated limits, for another stack."),
    calibration: Path | None = typer.Option(
        None, help="Limits that `tally calibrate-training` wrote, in place of the shipped ones; takes --tolerant."
    ),
    replay: str | None = typer.Option(
        None, help="Replay the step graph, or the recipe with a trainer: graph or recipe."
    ),
    graph: list[str] | None = typer.Option(
        None, "--graph", metavar="ROOT", help="Approve a further step graph of a loop, which you have read."
    ),
    strict: bool = typer.Option(
        False, "--strict", help="Demand of a loop one step graph, one rule, and learning rates on a schedule."
    ),
    device: str | None = DEVICE,
    anchors: AnchorsUrl = None,
    segment: str | None = typer.Option(None, metavar="A..B", help="Of a service: only from anchor A to anchor B."),
    step: int | None = typer.Option(None, min=1, help="Of a service: only the segment in which this step lies."),
    token_file: TokenFile = None,
    html: Path | None = HTML,
    db: str | None = REPORT_DB,
    json: bool = REPORT_JSON,
    verbose: Verbose = False,
) -> int:
    """Replay part of a run and compare it with the record.

    Every record is rechecked first. The nonce chooses the steps to replay. Recorded calls of a model, and a segment
    that `tally open` wrote, are audited in the same way. Of a service, what the audit needs is fetched first, and
    judged here.
    """
    keep_freed_memory()
    if html is not None:
        require_writable(html)
    if db is not None:
        open_database(db, writable=True).close()  # so that what cannot be written is found before the audit
    if calibration is not None and not tolerant:
        raise UsageError("--calibration takes --tolerant: an exact audit compares bytes")
    chosen = {
        "samples": samples,
        "window": window,
        "claim": claim,
        "full": full or None,
        "shards": shards,
        "mode": "tolerant" if tolerant else None,
        "replay": replay,
        "calibration": None if calibration is None else read_calibration(calibration).model_dump(mode="json"),
        "graphs": graph or None,
        **dict.fromkeys(("one_graph", "one_rule", "scheduled_rates"), strict or None),
    }
    chosen_policy = _policy(policy, chosen)
    theirs = {"segment": segment, "step": step, "token_file": token_file}
    with _watched() as progress:
        ours = {"nonce": nonce, "device": device, "corpus": corpus, "initial": initial, "progress": progress}
        result = _repeatable(_audited(run, chosen_policy, anchors, ours, theirs), context)
    if db is not None:
        with open_database(db, writable=True) as database:
            audits.add_audit(database, result.to_json(), run=None if run.startswith(URLS) else Path(run))
    return _show(result, html, json, verbose)


def verify_segment(
    context: typer.Context,
    run: Path = typer.Argument(help="A finished run directory."),
    start: int = typer.Option(..., "--from", min=0, help="The anchor to start from."),
    end: int = typer.Option(..., "--to", min=1, help="The anchor to arrive at."),
    claim: str | None = CLAIM,
    initial: Path | None = INITIAL,
    device: str | None = DEVICE,
    anchors: AnchorsUrl = None,
    html: Path | None = HTML,
    json: bool = REPORT_JSON,
    verbose: Verbose = False,
) -> int:
    """Replay one segment and compare every bit.

    The state at its end has to equal the recorded anchor in every bit. With --initial, a segment from anchor 0 is also
    to begin with these weights.
    """
    if html is not None:
        require_writable(html)
    with _watched() as progress:
        asked = _policy(None, {"claim": claim})
        given: dict[str, Any] = {"device": device, "initial": initial, "anchors": anchors}
        result = _repeatable(auditing.verify_segment(run, start, end, asked, **given, progress=progress), context)
    return _show(result, html, json, verbose)


def _audited(
    run: str, policy: audit_policy.Policy, anchors: str | None, ours: dict[str, Any], theirs: dict[str, Any]
) -> auditing.AuditResult:
    """Audit a folder, or a run in a service; raises `UsageError` for an option that is for the other one."""
    if not run.startswith(URLS):
        if given := [name for name, value in theirs.items() if value is not None]:
            mend = "; `tally verify-segment RUN --from A --to B` replays a segment" * (given[0] != "token_file")
            raise UsageError(f"--{given[0].replace('_', '-')}: for a run in a service{mend}")
        return auditing.audit(run, policy, anchors=anchors, **ours)
    if anchors is not None:
        raise UsageError("--anchors: for a run directory; a service sends its anchors itself")
    marks = None if theirs["segment"] is None else read_marks(theirs["segment"])
    return audit_over_http.audit_over_http(
        run, policy, token=read_token(theirs["token_file"]), segment=marks, step=theirs["step"], **ours
    )


def _repeatable(result: auditing.AuditResult, context: typer.Context) -> auditing.AuditResult:
    """The result with the command that repeats it as it was typed."""
    command = repeated(context, b"" if result.report.policy.full else result.report.nonce)
    return replace(result, made=replace(result.made, command=command))


def _policy(path: Path | None, chosen: dict[str, Any]) -> audit_policy.Policy:
    options = {name: value for name, value in chosen.items() if value is not None}
    stated = audit_policy.read_policy(path).model_dump(mode="json", exclude_none=True) if path else {}
    return from_options(audit_policy.Policy, stated | options)


@contextmanager
def _watched() -> Iterator[training_audit.Progress]:
    """A bar that begins once there is a run to recheck, so that a complaint about a missing one stands alone."""
    with ExitStack() as shown:
        bars: list[Bar] = []

        def progress(done: int, total: int) -> None:
            if not bars:
                bars.append(shown.enter_context(progress_bar()))
                bars[0].add_task("replaying", total=None, seen="")
            bars[0].update(bars[0].task_ids[0], completed=done, total=total or None)

        yield progress


def _show(result: auditing.AuditResult, html: Path | None, as_json: bool, verbose: bool) -> int:
    if html is not None:
        write_atomically(html, result.page().encode())
    code = show_report(result, result.lines, as_json, verbose)
    if html is not None:
        talk().print(f"the report is in {html}", soft_wrap=True)
    return code


# `tally attack`: forge a run in one of the catalogued ways, to see which audit rejects it.


def attack(
    name: str | None = typer.Argument(None, help="The name of an attack; --list shows all."),
    run: Path | None = typer.Argument(None, help="A finished honest run; it is left alone."),
    out: Path | None = typer.Argument(None, help="The run directory to write the forgery to."),
    list_all: bool = typer.Option(False, "--list", help="List all attacks and what they change."),
    json: AsJson = False,
) -> None:
    """Forge a run, to see which audit rejects it."""
    if list_all:
        if json:
            return print_json({"attacks": [_json(each) for each in catalogue.ATTACKS.values()]})
        width = max(map(len, catalogue.ATTACKS))
        return print(*(f"{name:<{width}}  {row.change}" for name, row in catalogue.ATTACKS.items()), sep="\n")
    if name is not None:
        catalogue.find_attack(name)
    if name is None or run is None or out is None:
        raise UsageError("`tally attack NAME RUN OUT`, or `tally attack --list`")
    require_folder(run, RUN)
    require_empty_folder(out)
    import torch

    chosen = catalogue.find_attack(name)
    torch.set_num_threads(runs.RunDirectory(run).environment().threads)
    chosen.forge(run, out)
    return show({**_json(chosen), "out": str(out)}, f"{out}: {chosen.change}. {_who_sees(chosen)}", json)


def _json(attack: catalogue.Attack) -> dict[str, Json]:
    return {"change": attack.change, "honest": attack.is_honest, "name": attack.name, "seen_by": _who_sees(attack)}


def _who_sees(attack: catalogue.Attack) -> str:
    """The first audit, in the order of their effort, that should not accept the forgery."""
    if attack.is_honest:
        return "Every audit should accept it."
    sampled = "`tally audit` should see it, if its sample hits the forged steps"
    if attack.reference == "corpus":
        sampled = "`tally audit --corpus`, with the directory of the shards, should see it"
    if attack.reference == "checkpoint":
        sampled = "`tally audit --initial`, with the directory of the checkpoint, should see it"
    if "rows of the corpus" in attack.expected("exact").checks:
        sampled = "`tally audit --corpus --initial`, with the shards and a directory of their tokenizer, should see it"
    commands = {
        "screens": "Any audit should see it without a replay",
        "exact": sampled,
        "full": "`tally audit --full` should see it",
        "claim": "`tally audit --claim`, with the digest of the honest claim, should see it",
        "tolerant": "`tally audit --tolerant` should see it",
    }
    for audit in ("screens", "exact", "full", "tolerant", "claim"):
        if attack.expected(audit).outcome in ("rejected", "refused"):
            return f"{commands[audit]}: {', '.join(attack.expected(audit).checks)}."
    return f"No audit can see it: {attack.expected('exact').why}."
