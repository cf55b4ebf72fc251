"""`tally demo`: train, audit, forge six runs; serve an answer, honestly and not; dispute claims to the end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tallystick.answers.report import ReceiptReport
    from tallystick.api.audit_result import AuditResult
    from tallystick.cli.demo_dispute import Ended
    from tallystick.commitments.encoding import Json
    from tallystick.transcripts.receipt import SignedReceipt

COLOURS = {"accepted": "green", "rejected": "red", "inconclusive": "yellow"}
PROFILED = 8
"""The step whose timeline a kept demo shows."""
FRAUDS = (
    "bad-seed",
    "gradient-noise",
    "weights-edited",
    "broken-seal",
    "record-removed-resealed",
    "data-substituted",
)


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo: what was done to it, what should come out, and what came out."""

    title: str
    expected: str
    found: str
    reason: str
    seconds: float
    report: dict[str, Json] | None = None
    """The report of the audit, or of the check of a receipt; a dispute has none."""
    run: Path | None = None

    @property
    def as_expected(self) -> bool:
        """Whether the audit said what it should have said."""
        return self.expected == self.found


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(demo)


def demo(
    out: Path | None = typer.Option(None, help="Keep all runs in this directory; by default they are deleted."),
) -> int:
    """Show honest runs accepted and nine frauds caught.

    Trains a small model and audits it, serves an answer and verifies it, and disputes three claims. Needs
    `pip install 'tallystick[disputes]'`.
    """
    from tallystick.errors import UsageError
    from tallystick.extras import require

    require("torch", "transformers", "tokenizers", "sqlalchemy")
    if out is not None and out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: not empty; choose another directory")
    with _stage(out) as stage:
        acts = list(_play(stage))
    _print(acts)
    if out is not None:
        _fill(out, acts)
    return 0 if all(act.as_expected for act in acts) else 1


@contextmanager
def _stage(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="tally-demo-") as folder:
        yield Path(folder)


def _play(stage: Path) -> Iterator[DemoRun]:
    from tallystick.attacks.catalogue import find_attack
    from tallystick.cli.output import talk

    honest = stage / "honest"
    talk().print("Training a small Llama-style model on the Python language reference …")
    _train(honest)
    yield _judge("honest run", honest, "accepted")
    for name in FRAUDS:
        attack = find_attack(name)
        talk().print(f"Fraud: {attack.change} …")
        attack.forge(honest, stage / name)
        yield _judge(name, stage / name, "rejected")
    yield from _serve(honest, stage / "model")
    yield from _dispute(stage)


def _serve(run: Path, out: Path) -> Iterator[DemoRun]:
    """Answer a question from the trained model, then from the same model in 4 bits under the same name."""
    from tallystick.cli.demo_answer import exported_model, quantised, served_answer, verified
    from tallystick.cli.output import talk

    talk().print("Serving an answer from the trained model, with a receipt …")
    promised = exported_model(run, out)
    scenes = (("honest answer", promised, "accepted"), ("quantised answer", quantised(promised), "rejected"))
    for title, provider, expected in scenes:
        signed, started = served_answer(provider, out.with_name(title.replace(" ", "-"))), time.perf_counter()
        report = verified(signed, promised)
        took = time.perf_counter() - started
        yield DemoRun(title, expected, report.outcome, _receipt_reason(signed, report), took, report.to_json())


def _dispute(stage: Path) -> Iterator[DemoRun]:
    """Make three claims with a bond: honest answers, answers with one layer swapped, a step at a wrong rate."""
    from tallystick.cli.demo_dispute import honest_claim, swapped_layer, wrong_rate
    from tallystick.cli.output import talk

    talk().print("Claims with a bond, before a coordinator; a challenger recomputes them …")
    calls, run = stage / "calls", stage / "disputed"
    scenes: tuple[tuple[str, Callable[[], Ended], str], ...] = (
        ("honest claim", lambda: honest_claim(stage / "model", calls), "final"),
        ("swapped layer", lambda: swapped_layer(calls, stage / "swapped-layer"), "slashed"),
        ("wrong learning rate", lambda: wrong_rate(run, stage / "wrong-rate"), "slashed"),
    )
    _train(run, talk().print)
    for title, play, expected in scenes:
        started = time.perf_counter()
        ended = play()
        yield DemoRun(title, expected, ended.outcome, ended.reason, time.perf_counter() - started)


def _train(out: Path, capture_with: Callable[[str], None] | None = None) -> None:
    """On one thread: so small a model gains nothing from a second one."""
    from importlib import resources

    import torch

    from tallystick.recorders.config import read_config
    from tallystick.recorders.training import train

    torch.set_num_threads(1)
    with resources.as_file(resources.files("tallystick") / "examples") as examples:
        config = read_config(examples / "demo.toml")
        train(config.recipe, config.source, out, capture_with=capture_with)


def _judge(title: str, run: Path, expected: str) -> DemoRun:
    from tallystick.api.auditing import audit
    from tallystick.audits.policy import Policy

    started = time.perf_counter()
    result = audit(run, Policy(full=True))
    took = time.perf_counter() - started
    return DemoRun(title, expected, result.outcome, _reason(result), took, result.to_json(), run)


def _reason(result: AuditResult) -> str:
    from tallystick.presentation.verdict_text import describe

    if result.objections:
        return describe(result.objections[0])
    return next(iter(result.verdict.unavailable), "all steps replayed bit for bit")


def _receipt_reason(signed: SignedReceipt, report: ReceiptReport) -> str:
    from tallystick.presentation.verdict_text import describe

    if report.verdict.objections:
        return describe(report.verdict.objections[0])
    if report.verdict.unavailable:
        return report.verdict.unavailable[0]
    size = signed.receipt.fingerprint_bytes_per_token
    return f"{report.tokens} tokens explained by model and sampler, fingerprints of {size:.1f} bytes a token agree"


def _fill(out: Path, acts: list[DemoRun]) -> None:
    """Read everything that was kept into a workload database, for whoever wants to look."""
    from shlex import quote

    from tallystick.cli.output import talk
    from tallystick.errors import UnavailableError
    from tallystick.extras import require

    try:
        require("alembic", "fastapi", "jinja2")
    except UnavailableError as error:
        talk().print(f"all of it is in {out}; to look at it in a browser, {error}", soft_wrap=True)
        return
    _add_all(out, acts)
    talk().print(f"all of it is in a database: tally ui --db {quote(str(out / 'tally.db'))}", soft_wrap=True)


def _add_all(out: Path, acts: list[DemoRun]) -> None:
    from tallystick.api.profiling import profile_step
    from tallystick.commitments.encoding import encode
    from tallystick.documents.files import write_atomically
    from tallystick.indexing.add import add_place
    from tallystick.indexing.audits import add_audit
    from tallystick.store.database.workload_database import WorkloadDatabase
    from tallystick.store.run import RunDirectory

    for run in out.glob("disputed"):  # the run that has a step graph
        profile_step(RunDirectory(run), PROFILED, run / "traces" / "replay")
    claimed = [each for each in sorted(out.iterdir()) if (each / "claim.json").is_file()]
    with WorkloadDatabase(out / "tally.db", writable=True) as database:
        for place in (*claimed, *sorted(out.glob("*-answer"))):
            add_place(database, place, tensors=place.name not in FRAUDS)  # the bytes of some are not the recorded ones
        for court in sorted(out.glob("*-dispute/coordinator.db")):
            add_place(database, court, court.parent.name)
        for act in acts:
            if act.report is not None:
                file = out / "reports" / f"{act.title.replace(' ', '-')}.json"
                write_atomically(file, encode(act.report))
                add_audit(database, act.report, str(file.absolute()), act.run)


def _print(acts: list[DemoRun]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from tallystick.cli.output import page

    table = Table(box=None, pad_edge=False)
    for heading in ("run", "verdict", "reason", "audit"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "audit" else "left")
    for act in acts:
        mark = "" if act.as_expected else f" [bold red]expected {act.expected}[/]"
        verdict = f"[{COLOURS[act.found]}]{act.found}[/]{mark}" if act.found in COLOURS else act.found
        table.add_row(act.title, verdict, escape(act.reason), f"{act.seconds:.1f} s")
    page().print(table)
    good = sum(act.as_expected for act in acts)
    page().print(f"{good} of {len(acts)} verdicts as expected.")
