"""What a verifier names when operators are judged: a precision, and files of thresholds, budgets and claims."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from tallystick.judging.published import Published
    from tallystick.operators.precision import Precision
    from tallystick.transcripts.budget import Budget
    from tallystick.transcripts.profile import Profile


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
        from tallystick.documents.suggestions import refusal

        raise UsageError(f"--precision: {refusal(name, [*known])}")
    return known[name]


def read_profile(path: Path | str) -> Profile:
    """The calibrated thresholds in a file; raises `MalformedError` for anything else."""
    from tallystick.documents.files import read_document
    from tallystick.transcripts.profile import Profile

    return Profile.from_bytes(read_document(Path(path)).removesuffix(b"\n"), Path(path).name)


def read_budgets(paths: Iterable[Path]) -> tuple[Budget, ...]:
    """The budgets in files, one for each graph; raises `UsageError` for two of one graph, `MalformedError` for none."""
    from tallystick.documents.files import read_document
    from tallystick.transcripts.budget import Budget

    found = [Budget.from_bytes(read_document(path).removesuffix(b"\n"), path.name) for path in paths]
    if len({budget.graph for budget in found}) < len(found):
        raise UsageError("--budget: two budgets for one graph")
    return tuple(found)


def read_published(run: Path | str) -> Published:
    """What a run directory claims; raises `UnavailableError` where there is none, `UsageError` for opened operators."""
    from tallystick.judging.published import Published
    from tallystick.store.run import RunDirectory
    from tallystick.store.statement import OpeningDirectory, read_statement

    path = Path(run)
    if not path.exists():
        raise UnavailableError(f"{path}: no such run directory")
    found = read_statement(path)
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"--run {path}: holds opened operators, and not the run that they were opened of")
    return Published(found.claim(), found.spec() if isinstance(found, RunDirectory) else None)
