"""`tally verify-graph`: is a committed decode graph the promised model's, and by which route is it verified?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tallystick.cli.options import dtype_of, dtype_option
from tallystick.cli.verdicts import VERBOSE, show_verdict
from tallystick.errors import ProofError, UnavailableError, UsageError

if TYPE_CHECKING:
    from tallystick.commitments.digests import Digest
    from tallystick.graphs.graph import Graph
    from tallystick.judging.verdict import Verdict
    from tallystick.tolerances.tolerance import Finding
    from tallystick.transcripts.model_card import Dtype

ROUTES: Final = ("own capture", "symbolic length", "teacher forcing")
RANDOM_INPUTS: Final = "what a graph does for rare inputs alone would show in random ones"


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(name="verify-graph")(verify_graph)


def verify_graph(
    graph: Path = typer.Argument(help="The decode graph, as `tally generate --graph` wrote it."),
    model: Path = typer.Option(..., "--model", help="The directory of the promised model."),
    receipt: Path | None = typer.Option(None, "--receipt", help="A receipt that has to name this graph."),
    length: int = typer.Option(8, min=1, max=4096, help="The tokens that the verification graph reads at once."),
    route: list[str] = typer.Option([], "--route", help=f"Routes that the verifier accepts: {', '.join(ROUTES)}."),
    dtype: str | None = dtype_option("The promised precision"),
    json: bool = typer.Option(False, "--json", help="Print the verdict as JSON."),
    verbose: bool = VERBOSE,
) -> int:
    """Check that a decode graph is the promised model's.

    The verdict also names the route by which a whole answer can be verified.

    Three routes are tried: a capture by the verifier, a committed symbolic length, and a transformation of the
    graph.
    """
    from tallystick.cli.output import existing
    from tallystick.graphs.files import load_program
    from tallystick.store.folders import MODEL, require_folder

    if unknown := [each for each in route if each not in ROUTES]:
        from tallystick.documents.suggestions import refusal

        raise UsageError(f"--route: {refusal(unknown[0], [*ROUTES])}")
    require_folder(model, MODEL)
    promised = dtype_of(model, dtype)
    committed, constants = load_program(existing(graph, "graph"))
    named = None if receipt is None else _named_root(receipt)
    verdict = _verdict(committed, constants, model, length, tuple(route or ROUTES), promised, named)
    return show_verdict(verdict, str(graph), json, verbose)


def _named_root(path: Path) -> Digest:
    from tallystick.answers.reading import read_responses
    from tallystick.commitments.encoding import parse
    from tallystick.documents.files import read_document

    found = next(iter(read_responses(parse(read_document(path), path.name), path.name))).receipt.receipt.engine.graph
    if found is None:
        raise UnavailableError(f"{path.name}: the receipt names no decode graph")
    return found


def _verdict(
    graph: Graph,
    constants: object,
    model: Path,
    length: int,
    routes: tuple[str, ...],
    dtype: Dtype,
    named: Digest | None,
) -> Verdict:
    from tallystick.frameworks.torch.generation.language_models import load_language_model
    from tallystick.frameworks.torch.generation.own_capture import DecodeProgram
    from tallystick.frameworks.torch.generation.verification_graph import verification_graph
    from tallystick.judging.verdict import Verdict

    findings = [] if named is None else [_root(graph, named)]
    promised = load_language_model(model, dtype)
    program = DecodeProgram(graph, constants)  # type: ignore[arg-type]
    try:
        found = verification_graph(program, length, promised.model, routes)  # type: ignore[arg-type]
    except ProofError as error:
        return Verdict((*findings, _refused(str(error))))
    except UnavailableError as error:
        return Verdict(tuple(findings), (str(error),))
    passed = tuple(f"route passed over: {name}: {reason}" for name, reason in found.passed_over.items())
    return Verdict((*findings, *found.findings), (), passed, (f"route taken: {found.route}", RANDOM_INPUTS))


def _root(graph: Graph, named: Digest) -> Finding:
    from tallystick.graphs.root import graph_root
    from tallystick.tolerances.tolerance import Finding

    differs = float(graph_root(graph) != named)
    return Finding(differs, 0.0, "graph root", detail="the receipt names another graph" if differs else "")


def _refused(reason: str) -> Finding:
    from tallystick.tolerances.tolerance import Finding

    return Finding(1.0, 0.0, "decode graph", detail=reason)
