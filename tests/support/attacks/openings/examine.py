"""Judging a forged opening in every way there is, to compare what is said with what was expected."""

from __future__ import annotations

from pathlib import Path

from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.formats.claims import Claim
from tallystick.formats.spec import Spec
from tallystick.verdicts.opening.judge import OpeningRequest, judge_opening
from tallystick.verdicts.opening.published import Published
from tallystick.verdicts.verdict import Verdict
from tests.support.attacks.examine import Answer, of_verdict
from tests.support.attacks.openings.attack import Judge
from tests.support.attacks.openings.scene import CLAIM, SPEC


def examine_opening(folder: Path, judge: Judge, run: Path) -> Answer:
    """Ask about an opening; `run` is the honest run whose claim the judge `kept` holds."""
    try:
        return of_verdict(judged(folder, judge, run))
    except (MalformedError, UnavailableError, ProofError) as error:
        return Answer("refused", detail=str(error))


def judged(folder: Path, judge: Judge, run: Path) -> Verdict:
    """The verdict of one way of judging."""
    if judge == "alone":
        return judge_opening(folder, OpeningRequest())
    return judge_opening(folder, OpeningRequest(published=published(folder if judge == "own" else run)))


def published(folder: Path) -> Published:
    """The claim and the spec that lie in a folder."""
    claim = Claim.from_bytes((folder / CLAIM).read_bytes(), CLAIM)
    return Published(claim, Spec.from_bytes((folder / SPEC).read_bytes(), SPEC))
