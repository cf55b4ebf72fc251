"""A verdict as lines of text: the verdict and why, what was not checked, what passed; every check on request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tallystick.judging.verdict import Verdict
from tallystick.tolerances.tolerance import Finding

OBJECTIONS_SHOWN: Final = 12
COLUMNS: Final = ("check", "verdict", "n", "agree", "largest distance", "allowed")
COST_COLUMNS: Final = ("bytes", "seconds")


@dataclass(frozen=True)
class CheckSummary:
    """All findings of one check together; `worst` disagrees, or has the largest distance."""

    name: str
    count: int
    disagreeing: int
    advisory: bool
    worst: Finding


@dataclass(frozen=True)
class CheckCost:
    """The bytes of evidence that one check read, and the seconds that it took."""

    bytes: int
    seconds: float


@dataclass(frozen=True)
class VerdictText:
    """A verdict on `subject`, and what else its reader is told.

    `reasons` stand next to the verdict and `notes` at the end. `details` and `costs`, those by check, are shown with
    every check; `open_checks` could not be made.
    """

    verdict: Verdict
    subject: str
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    costs: Mapping[str, CheckCost] = field(default_factory=dict)
    open_checks: frozenset[str] = frozenset()

    def lines(self, verbose: bool = False) -> list[str]:
        """The verdict and why, what was not checked, one line for what passed; with `verbose` every check too."""
        verdict = self.verdict
        lines = [f"{verdict.outcome.upper()}  {self.subject}", *self.reasons, *_objections(verdict)]
        lines += [f"could not check: {each}" for each in verdict.unavailable]
        lines += [f"not checked: {each}" for each in verdict.not_checked]
        lines.append(_passed(verdict, verbose))
        if verbose:
            lines += [*self._table(), *self.details]
            lines += [f"assumed: {each}" for each in verdict.assumptions]
        return [printable(line) for line in (*lines, *self.notes)]

    def _table(self) -> list[str]:
        """One row for each check: verdict, comparisons, those that agree, the worst distance, and what is allowed."""
        summaries = {each.name: each for each in summarise_checks(self.verdict.findings)}
        names = dict.fromkeys([*summaries, *sorted(self.open_checks), *self.costs])
        rows = [[*COLUMNS, *(COST_COLUMNS if self.costs else ())]]
        rows += [[*self._cells(name, summaries.get(name)), *self._cost(name)] for name in names]
        return aligned(rows, left=2)

    def _cells(self, name: str, check: CheckSummary | None) -> list[str]:
        is_open = name in self.open_checks
        if check is None:
            return [name, "open" if is_open else "", "", "", "", ""]
        mark = "advisory" if check.advisory else "no" if check.disagreeing else "open" if is_open else "yes"
        sizes = [f"{check.worst.distance:.3g}", f"{check.worst.allowed:.3g}"]
        return [name, mark, str(check.count), str(check.count - check.disagreeing), *sizes]

    def _cost(self, name: str) -> list[str]:
        if not self.costs:
            return []
        cost = self.costs.get(name)
        return ["", ""] if cost is None else [str(cost.bytes), f"{cost.seconds:.4f}"]


def _objections(verdict: Verdict) -> Iterator[str]:
    for finding in verdict.objections[:OBJECTIONS_SHOWN]:
        yield f"objection {describe(finding)}"
    if (more := len(verdict.objections) - OBJECTIONS_SHOWN) > 0:
        yield f"… and {more} more; --json lists all of them"


def _passed(verdict: Verdict, verbose: bool) -> str:
    """How many of the checks that decide passed, and of their comparisons."""
    decisive = [finding for finding in verdict.findings if not finding.advisory]
    checks = summarise_checks(decisive)
    passed, agreeing = sum(not each.disagreeing for each in checks), sum(each.agrees for each in decisive)
    if not passed:
        return "passed: nothing"
    line = f"passed: {_of(passed, len(checks))} checks, {_of(agreeing, len(decisive))} comparisons"
    return line if verbose else f"{line} (--verbose shows every check)"


def _of(part: int, whole: int) -> str:
    return str(whole) if part == whole else f"{part} of {whole}"


def summarise_checks(findings: Iterable[Finding]) -> list[CheckSummary]:
    """The findings by check, in the order in which the checks were made."""
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.name].append(finding)
    return [_summary(name, group) for name, group in groups.items()]


def _summary(name: str, group: list[Finding]) -> CheckSummary:
    worst = max(group, key=lambda finding: (not finding.agrees, finding.distance))
    disagreeing = sum(not finding.agrees for finding in group)
    return CheckSummary(name, len(group), disagreeing, all(finding.advisory for finding in group), worst)


def describe(finding: Finding) -> str:
    """One finding as a line: check, place, distance in its unit, and what it means."""
    place = f" at {finding.where}" if finding.where else ""
    detail = f": {finding.detail}" if finding.detail else ""
    is_equality = finding.allowed == 0 and finding.distance == 1
    size = "" if is_equality else f" ({finding.distance:.3g} of {finding.allowed:.3g})"
    return printable(f"{finding.name}{place}{size}{detail}")


def printable(text: str) -> str:
    """Text from a run, without what a terminal would obey."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def aligned(rows: list[list[str]], left: int) -> list[str]:
    """Rows as lines of columns; the first `left` columns are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
