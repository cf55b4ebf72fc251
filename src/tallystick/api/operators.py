"""`tallystick.judge`: the opened operators of one recorded step or call, judged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tallystick.api.settings import read_precision, read_profile, read_published
from tallystick.commitments.digests import parse_digest
from tallystick.judging.opening.judge import OpeningRequest, judge_opening
from tallystick.judging.verdict import Verdict
from tallystick.transcripts.profile import Profile


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
    asked = OpeningRequest(
        read_precision(precision),
        profile if profile is None or isinstance(profile, Profile) else read_profile(profile),
        frozenset(nodes),
        tuple(properties),
        None if claim is None else parse_digest(claim, "--claim"),
        None if run is None else read_published(run),
    )
    return judge_opening(Path(opening), asked)
