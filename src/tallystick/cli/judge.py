"""`tally judge`: judge opened operators by the reference and its proven bounds; no framework is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tallystick.cli.verdicts import VERBOSE, print_verdict
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.commitments.encoding import Json
    from tallystick.judging.verdict import Verdict

PRECISION_HELP: Final = (
    "What the prover computed in: stepwise (16-bit floats, rounded as on CPUs), plain (one rounding, as on "
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
    verbose: bool = VERBOSE,
) -> int:
    """Judge the opened operators of one step, as an auditor.

    Each operator is computed again on its claimed operands. Its result has to be equal, within its proven bound, or
    within a calibrated threshold.

    To rule on a dispute over one operator see `tally referee` (from a file) and `tally rule` (at a coordinator).
    """
    if list_all:
        return _list()
    if opening is None:
        raise UsageError("`tally judge DIR`, or `tally judge --list`")
    from tallystick.api.operators import judge
    from tallystick.cli.memory import keep_freed_memory
    from tallystick.store.folders import OPENING, require_folder

    keep_freed_memory()
    require_folder(opening, OPENING)
    verdict = judge(
        opening,
        nodes=node or (),
        profile=profile,
        precision=precision,
        properties=properties or (),
        claim=claim,
        run=run,
    )
    return _show(verdict, opening, json, verbose)


def _show(verdict: Verdict, opening: Path, as_json: bool, verbose: bool) -> int:
    """Print the verdict, and the operator and module of each node that is objected to."""
    from tallystick.api.operators import operators_objected_to
    from tallystick.cli.output import print_json
    from tallystick.judging.opening.files import read_opening
    from tallystick.presentation.verdict_text import VerdictText

    objected = operators_objected_to(verdict, opening)
    if as_json:
        named: list[Json] = [each.to_json() for each in objected]
        stated = read_opening(opening)
        print_json({**verdict.to_json(), "claim": stated.claim, "graph": stated.graph, "operators": named})
    else:
        print_verdict(VerdictText(verdict, str(opening), tuple(map(str, objected))), verbose)
    return verdict.exit_code


def _list() -> int:
    from tallystick.judging.properties import PROPERTIES

    width = max(map(len, PROPERTIES))
    for found in PROPERTIES.values():
        print(f"{found.name:<{width}}  {found.proves}")
    return 0
