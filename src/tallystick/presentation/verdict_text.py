"""A verdict as lines of text: the verdict in one sentence, objections, what was not checked, what passed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tallystick.judging.verdict import Verdict
from tallystick.presentation.check_summary import summarise_checks
from tallystick.presentation.sentence import counted, sentence_of
from tallystick.tolerances.tolerance import Finding

OBJECTIONS_SHOWN: Final = 12


@dataclass(frozen=True)
class CheckCost:
    """The bytes of evidence that one check read, and the seconds that it took."""

    bytes: int
    seconds: float


@dataclass(frozen=True)
class VerdictText:
    """A verdict on `subject`, and what else its reader is told.

    `reasons` stand next to the verdict and `notes` at the end; `seconds` says how long each part took. `details` and
    `costs`, those by check, are shown with every check; `open_checks` could not be made.
    """

    verdict: Verdict
    subject: str
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, CheckCost] = field(default_factory=dict)
    open_checks: frozenset[str] = frozenset()

    def lines(self, verbose: bool = False) -> list[str]:
        """The verdict and why, what was not checked, one line for what passed; with `verbose` every check too."""
        verdict = self.verdict
        lines = [f"{verdict.outcome.upper()}  {sentence_of(verdict)}", self.subject, *self.reasons]
        lines += _objections(verdict)
        lines += [f"checked: {each}" for each in verdict.shown]
        lines += [f"could not check: {each}" for each in verdict.unavailable]
        lines += [f"not checked: {each}" for each in verdict.not_checked]
        lines.append(passed_line(verdict) if verbose else f"{passed_line(verdict)}; -v shows each")
        if verbose:
            from tallystick.presentation.check_table import check_table

            lines += [*check_table(self), *self.details]
            lines += [f"assumed: {each}" for each in verdict.assumptions]
        lines += [f"seconds: {seconds_line(self.seconds)}"] if self.seconds else []
        return [printable(line) for line in (*lines, *self.notes)]


def passed_line(verdict: Verdict) -> str:
    """How many of the checks that decide passed, and of their comparisons."""
    decisive = [finding for finding in verdict.findings if not finding.advisory]
    checks = summarise_checks(decisive)
    passed, agreeing = sum(not each.disagreeing for each in checks), sum(each.agrees for each in decisive)
    if not passed:
        return "no check passed"
    return f"{_of(passed, len(checks), 'check')} passed ({_of(agreeing, len(decisive), 'comparison')})"


def seconds_line(seconds: Mapping[str, float]) -> str:
    """How long each part took."""
    return ", ".join(f"{value:.1f} {part}" for part, value in seconds.items())


def describe(finding: Finding) -> str:
    """One finding as a line: check, place, distance in its unit, and what it means."""
    place = f" at {finding.where}" if finding.where else ""
    detail = f": {finding.detail}" if finding.detail else ""
    is_equality = finding.allowed == 0 and finding.distance == 1
    size = "" if is_equality else f" ({finding.distance:.3g} of {finding.allowed:.3g})"
    return printable(f"{finding.name}{place}{size}{detail}")


def printable(text: str) -> str:
    """Text from a run, without what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _objections(verdict: Verdict) -> Iterator[str]:
    for finding in verdict.objections[:OBJECTIONS_SHOWN]:
        yield f"objection: {describe(finding)}"
    if (more := len(verdict.objections) - OBJECTIONS_SHOWN) > 0:
        yield f"… and {more} more; --json lists all of them"


def _of(part: int, whole: int, unit: str) -> str:
    return counted(whole, unit) if part == whole else f"{part:,} of {counted(whole, unit)}"
