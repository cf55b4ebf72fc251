"""`tally judge`: judge opened operators by the reference and its proven bounds; no framework is needed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.judging.published import Published
    from tallystick.judging.verdict import Verdict
    from tallystick.operators.precision import Precision
    from tallystick.transcripts.budget import Budget
    from tallystick.transcripts.profile import Profile


PRECISION_HELP: Final = (
    "What the prover computed in: stepwise (16-bit floats as any kernel for CPUs has them), plain (one rounding, as on "
    "GPUs), tf32, bf16-products, bf16-sums, fp16-sums."
)


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(judge)


def judge(
    opening: Path | None = typer.Argument(None, help="A directory that `tally open --operators` wrote."),
    node: list[int] | None = typer.Option(None, "--node", help="Judge this operator; may be given several times."),
    profile: Path | None = typer.Option(None, help="Calibrated thresholds besides the proven bounds."),
    precision: str = typer.Option("stepwise", help=PRECISION_HELP),
    properties: list[str] | None = typer.Option(None, "--properties", help="Check this property too, or `all`."),
    claim: str | None = typer.Option(None, help="The digest of the claim that was published: sha256:…"),
    run: Path | None = typer.Option(None, help="The run that is opened: its claim and spec say what was claimed."),
    list_all: bool = typer.Option(False, "--list", help="List the properties and what each proves."),
    json: bool = typer.Option(False, "--json", help="Print the verdict as JSON."),
) -> int:
    """Judge each opened operator on its claimed operands: exactly, within its bound, or within a threshold."""
    if list_all:
        return _list()
    if opening is None:
        raise UsageError("`tally judge DIR`, or `tally judge --list`")
    from tallystick.commitments.digests import parse_digest
    from tallystick.judging.opening import Judgement, judge_opening

    asked = Judgement(
        read_precision(precision),
        None if profile is None else read_profile(profile),
        frozenset(node or ()),
        tuple(properties or ()),
        None if claim is None else parse_digest(claim, "--claim"),
        None if run is None else read_published(run),
    )
    return _show(judge_opening(opening, asked), opening, json)


def _list() -> int:
    from tallystick.judging.properties import PROPERTIES

    width = max(map(len, PROPERTIES))
    for found in PROPERTIES.values():
        print(f"{found.name:<{width}}  {found.proves}")
    return 0


def read_precision(name: str) -> Precision:
    """What the prover computed in, by its name; raises `UsageError` for another."""
    from tallystick.operators import precision

    known = {
        "stepwise": precision.STEPWISE,
        "plain": precision.PLAIN,
        "tf32": precision.TENSOR_FLOAT,
        "bf16-products": precision.BFLOAT_PRODUCTS,
        "bf16-sums": precision.BFLOAT_SUMS,
        "fp16-sums": precision.HALF_SUMS,
    }
    if name not in known:
        raise UsageError(f"--precision {name}: one of {', '.join(known)}")
    return known[name]


def read_profile(path: Path) -> Profile:
    """The calibrated thresholds in a file; raises `MalformedError` for anything else."""
    from tallystick.documents.files import read_document
    from tallystick.transcripts.profile import Profile

    return Profile.from_bytes(read_document(path).removesuffix(b"\n"), path.name)


def read_budgets(paths: Iterable[Path]) -> tuple[Budget, ...]:
    """The budgets in files, one for each graph; raises `UsageError` for two of one graph, `MalformedError` for none."""
    from tallystick.documents.files import read_document
    from tallystick.transcripts.budget import Budget

    found = [Budget.from_bytes(read_document(path).removesuffix(b"\n"), path.name) for path in paths]
    if len({budget.graph for budget in found}) < len(found):
        raise UsageError("--budget: two budgets for one graph")
    return tuple(found)


def read_published(run: Path) -> Published:
    """What a run directory claims."""
    from tallystick.cli.output import existing
    from tallystick.judging.published import Published
    from tallystick.store.run import RunDirectory
    from tallystick.store.statement import OpeningDirectory, read_statement

    found = read_statement(existing(run, "run directory"))
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"--run {run}: holds opened operators, and not the run that they were opened of")
    return Published(found.claim(), found.spec() if isinstance(found, RunDirectory) else None)


def _show(verdict: Verdict, opening: Path, as_json: bool) -> int:
    from tallystick.cli.output import print_json

    if as_json:
        print_json(verdict.to_json())
    else:
        print_verdict(verdict, str(opening))
    return verdict.exit_code


def print_verdict(verdict: Verdict, subject: str) -> None:
    """Print a verdict: one line per kind of check, then every objection and everything that is open."""
    from tallystick.cli.report import describe, printable, summarise_checks

    print(f"{verdict.outcome.upper()}  {subject}")
    for check in summarise_checks(verdict.findings):
        measured = bool(check.worst.distance or check.worst.allowed)
        worst = f", largest {check.worst.distance:.3g} of {check.worst.allowed:.3g}" if measured else ""
        print(f"  {check.name}: {check.count - check.disagreeing} of {check.count} agree{worst}")
    for finding in verdict.objections[:OBJECTIONS_SHOWN]:
        print(f"objection {describe(finding)}")
    if (more := len(verdict.objections) - OBJECTIONS_SHOWN) > 0:
        print(f"… and {more} more; --json lists all of them")
    for title, lines in (
        ("could not check", verdict.unavailable),
        ("not checked", verdict.not_checked),
        ("assumed", verdict.assumptions),
    ):
        for line in lines:
            print(f"{title}: {printable(line)}")


OBJECTIONS_SHOWN = 12
