"""`tallystick.open_operators` and `tallystick.judge`: the operators of one recorded step or call, opened and judged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tallystick.commitments.digests import parse_digest
from tallystick.documents.files import read_document
from tallystick.errors import UnavailableError, UsageError
from tallystick.judging.opening import Judgement, judge_opening
from tallystick.judging.published import Published
from tallystick.judging.verdict import Verdict
from tallystick.operators import precision as precisions
from tallystick.operators.precision import Precision
from tallystick.store.inference import InferenceDirectory, claims_inference
from tallystick.store.run import RunDirectory
from tallystick.transcripts.budget import Budget
from tallystick.transcripts.profile import Profile

PRECISIONS: Final = {
    "stepwise": precisions.STEPWISE,
    "plain": precisions.PLAIN,
    "tf32": precisions.TENSOR_FLOAT,
    "bf16-products": precisions.BFLOAT_PRODUCTS,
    "bf16-sums": precisions.BFLOAT_SUMS,
    "fp16-sums": precisions.HALF_SUMS,
}


def judge(
    opening: Path | str,
    *,
    nodes: Iterable[int] = (),
    profile: Profile | Path | str | None = None,
    precision: str = "stepwise",
    properties: Iterable[str] = (),
    claim: str | None = None,
    run: Path | str | None = None,
) -> Verdict:
    """Judge each opened operator on its claimed operands: exactly, within its bound, or within a threshold.

    Args:
        opening: a directory that `tally open --operators` wrote.
        nodes: the operators to judge, by number; all of them by default.
        profile: calibrated thresholds besides the proven bounds, or their file.
        precision: what the prover computed in: `stepwise`, `plain`, `tf32`, `bf16-products`, `bf16-sums`, `fp16-sums`.
        properties: properties to check besides, by name, or `all`.
        claim: the digest of the claim that was published, as `sha256:…`.
        run: the directory of the run that is opened: its claim and spec say what was claimed.

    Raises:
        MalformedError: a file is not what it should be.
        UnavailableError: a file is missing.
        UsageError: a node, a property or a precision that does not exist is asked for.
    """
    asked = Judgement(
        read_precision(precision),
        profile if profile is None or isinstance(profile, Profile) else read_profile(profile),
        frozenset(nodes),
        tuple(properties),
        None if claim is None else parse_digest(claim, "--claim"),
        None if run is None else read_published(run),
    )
    return judge_opening(Path(opening), asked)


def read_precision(name: str) -> Precision:
    """What the prover computed in, by its name; raises `UsageError` for another."""
    if name not in PRECISIONS:
        raise UsageError(f"--precision {name}: one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def read_profile(path: Path | str) -> Profile:
    """The calibrated thresholds in a file; raises `MalformedError` for anything else."""
    return Profile.from_bytes(read_document(Path(path)).removesuffix(b"\n"), Path(path).name)


def read_budgets(paths: Iterable[Path]) -> tuple[Budget, ...]:
    """The budgets in files, one for each graph; raises `UsageError` for two of one graph, `MalformedError` for none."""
    found = [Budget.from_bytes(read_document(path).removesuffix(b"\n"), path.name) for path in paths]
    if len({budget.graph for budget in found}) < len(found):
        raise UsageError("--budget: two budgets for one graph")
    return tuple(found)


def read_published(run: Path | str) -> Published:
    """What a run directory claims; raises `UnavailableError` where there is none."""
    path = Path(run)
    if not path.exists():
        raise UnavailableError(f"{path}: no such run directory")
    if claims_inference(path):
        return Published(InferenceDirectory(path).claim())
    directory = RunDirectory(path)
    return Published(directory.claim(), directory.spec())
