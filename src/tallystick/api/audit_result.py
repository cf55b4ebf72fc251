"""`tallystick.AuditResult`: the verdict of an audit with its report, as text, page and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.audits.report import Report, claim_named
from tallystick.commitments.encoding import Json
from tallystick.judging.verdict import Judgement, Outcome, Verdict
from tallystick.tolerances.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.audits.inference import InferenceReport
    from tallystick.audits.policy import Policy
    from tallystick.judging.findings import Findings
    from tallystick.presentation.circumstances import Circumstances
    from tallystick.presentation.verdict_text import VerdictText
    from tallystick.store.run import RunDirectory


@dataclass(frozen=True, repr=False)
class AuditResult(Judgement):
    """The verdict of an audit; `print` shows the text of `tally audit`, and a notebook the page of `--html`.

    It is true if accepted, and false if rejected or inconclusive, which `outcome` tells apart. `report` holds
    everything that was found: the nonce, the sample, each replayed segment and what it cost; `made` says when, with
    which tools and on which stacks.
    """

    report: Report | InferenceReport
    made: Circumstances

    @property
    def verdict(self) -> Verdict:
        """The verdict with its findings, and with what was not checked."""
        return self.report.verdict

    @property
    def outcome(self) -> Outcome:
        """`"accepted"`, `"rejected"` or `"inconclusive"`."""
        return self.verdict.outcome

    @property
    def gist(self) -> str:
        """How much was replayed, and of which claim."""
        return f"{self.verdict.gist}, {claim_named(self.report.claim)[:21]}…"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every comparison, in the order in which they were made."""
        return self.verdict.findings

    @property
    def objections(self) -> tuple[Finding, ...]:
        """The findings that decide, and disagree."""
        return self.verdict.objections

    def to_json(self) -> dict[str, Json]:
        """The report as `tally audit --json` prints it."""
        from tallystick.presentation.audit_json import audit_json

        return audit_json(self.report, self.made)

    def text(self, verbose: bool = False) -> str:
        """The report as `tally audit` prints it; with `verbose`, every check."""
        return "\n".join(self.lines().lines(verbose))

    def page(self) -> str:
        """The report as one self-contained page of HTML, as `tally audit --html` writes it."""
        from tallystick.presentation.page import render_page

        return render_page(self.report, self.made)

    def lines(self) -> VerdictText:
        """What the text says, by its parts."""
        from tallystick.presentation.audit_text import audit_text

        return audit_text(self.report, self.made)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from tallystick.presentation.page import frame

        return frame(self.page())


def unread_result(run: RunDirectory, policy: Policy, findings: Findings, command: str) -> AuditResult:
    """The result for a run of which claim, spec or environment cannot be read."""
    from tallystick.audits.unread import report_unread
    from tallystick.presentation.circumstances import circumstances_of

    return AuditResult(report_unread(run, policy, findings), circumstances_of(run, command, None, 0.0))
