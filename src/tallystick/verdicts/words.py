"""A verdict in words: a sentence, what a sample excludes, lines of text, and a table of its checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Verdict

# What a sample in which nothing was wrong excludes about the whole, at 95 % confidence.

CONFIDENCE: Final = 0.95
ROUNDING: Final = 1e-12
"""A chance of 5 % up to rounding is not below 5 %."""


def excluded_from(total: int, drawn: int, confidence: float = CONFIDENCE) -> int:
    """The least number of bad units among `total` that is excluded: fewer are bad, at that confidence.

    With b bad units a sample of `drawn` without replacement misses all of them with probability
    C(total − b, drawn) / C(total, drawn). Excluded is each b for which this is below 1 − confidence. The bound is
    exact (T. Wright, Exact Confidence Bounds when Sampling from Small Finite Universes, Springer 1991, doi
    10.1007/978-1-4612-3140-0). It is `total` + 1 where nothing is excluded, not even that every unit is bad.

    >>> excluded_from(120, 8), excluded_from(10**6, 16), excluded_from(5, 5), excluded_from(5, 0)
    (37, 170749, 1, 6)
    """
    risk = (1 - confidence) * (1 - ROUNDING)
    low, high = 1, total + 1  # a sample misses more bad units with a smaller chance
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _misses_below(risk, total, drawn, middle) else (middle + 1, high)
    return low


def _misses_below(risk: float, total: int, drawn: int, bad: int) -> bool:
    """Whether C(total − bad, drawn) / C(total, drawn) is below `risk`; `drawn` and `bad` may change places."""
    few, many = sorted((drawn, bad))
    missed = 1.0
    for place in range(few):
        missed *= max(0, total - many - place) / (total - place)
        if missed < risk:
            return True
    return False


# A verdict as a sentence or two: how much was judged, how it came out, and what a sample excludes.

PERCENT: Final = f"{100 * CONFIDENCE:.0f} %"


def sentence_of(verdict: Verdict) -> str:
    """What was judged and with which result; of a sample, how many bad units it excludes."""
    return f"{_judged(verdict)}, {_result(verdict)}.{_rest(verdict)}"


def counted(number: int, unit: str) -> str:
    """A number with its unit, in the singular where it is one."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def bad_fewer_than(verdict: Verdict) -> int | None:
    """The least number of bad units that the sample excludes, where it excludes more than was judged anyway."""
    coverage = verdict.coverage
    if coverage is None or not coverage.drawn or not verdict.accepted or coverage.done == coverage.total:
        return None
    bound = excluded_from(coverage.total, coverage.drawn)
    return bound if bound <= coverage.total - coverage.done else None


def _judged(verdict: Verdict) -> str:
    coverage = verdict.coverage
    if coverage is None:
        count = sum(not finding.advisory for finding in verdict.findings)
        return f"{counted(count, 'comparison')} {'was' if count == 1 else 'were'} made"
    whole = counted(coverage.total, coverage.unit.removesuffix("s"))
    was = "was" if coverage.total == 1 else "were"
    if not coverage.done:
        if verdict.objections:  # what was replayed of a run that turns out to be another one, shows nothing about it
            return f"None of {whole} counts as {coverage.how.partition(' ')[0]}"
        return f"None of {whole} {was} {coverage.how.partition(' ')[0]}"
    if coverage.done < coverage.total:
        return f"{coverage.done:,} of {whole} {was} {coverage.how}"
    return f"{'The' if coverage.total == 1 else 'All'} {whole} {was} {coverage.how}"


def _result(verdict: Verdict) -> str:
    if verdict.objections:
        made = sum(not finding.advisory for finding in verdict.findings)
        count = len(verdict.objections)
        return f"and {count:,} of {counted(made, 'comparison')} disagree{'s' if count == 1 else ''}"
    if verdict.unavailable:
        return f"and {counted(len(verdict.unavailable), 'point')} could not be checked"
    if not verdict.accepted:
        return "and nothing was compared"
    closely = "" if verdict.coverage is None else verdict.coverage.closely
    return f"and all agreed {closely}".rstrip()


def _rest(verdict: Verdict) -> str:
    """What follows for the units that were not judged, where all of the others agreed."""
    coverage = verdict.coverage
    if coverage is None or coverage.drawn is None or not verdict.accepted or coverage.done == coverage.total:
        return ""
    rest = coverage.total - coverage.done
    if not coverage.drawn:
        return f" Nothing follows for the other {rest:,}."
    drawn = f"{'It was' if coverage.drawn == 1 else 'They were'} drawn at random"
    if coverage.drawn < coverage.done:  # a replay also passes those on the way to the sample
        drawn = f"{coverage.drawn:,} of them {'was' if coverage.drawn == 1 else 'were'} drawn at random"
    bound = bad_fewer_than(verdict)
    if bound is None:
        return f" {drawn}, too few to say anything about the other {rest:,}."
    return f" {drawn}: with {PERCENT} confidence fewer than {bound:,} of the other {rest:,} are bad."


# A verdict as lines of text: the verdict in one sentence, objections, what was not checked, what passed.

OBJECTIONS_SHOWN: Final = 12


@dataclass(frozen=True)
class CheckCost:
    """The bytes of evidence that one check read, and the seconds that it took."""

    bytes: int
    seconds: float


@dataclass(frozen=True)
class VerdictText:
    """A verdict on `subject`, with what else its reader should know.

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
        lines += [f"objection: {describe(finding)}" for finding in verdict.objections[:OBJECTIONS_SHOWN]]
        if (more := len(verdict.objections) - OBJECTIONS_SHOWN) > 0:
            lines.append(f"… and {more} more; --json lists all of them")
        lines += [f"checked: {line}" for line in verdict.shown]
        lines += [f"could not check: {line}" for line in verdict.unavailable]
        lines += [f"not checked: {line}" for line in verdict.not_checked]
        lines.append(passed_line(verdict) if verbose else f"{passed_line(verdict)}; -v shows each")
        if verbose:
            lines += [*check_table(self), *self.details]
            lines += [f"assumed: {line}" for line in verdict.assumptions]
        lines += [f"seconds: {seconds_line(self.seconds)}"] if self.seconds else []
        return [printable(line) for line in (*lines, *self.notes)]


def passed_line(verdict: Verdict) -> str:
    """How many of the checks that decide passed, and of their comparisons."""
    decisive = [finding for finding in verdict.findings if not finding.advisory]
    checks = summarise_checks(decisive)
    passed, agreeing = sum(not check.disagreeing for check in checks), sum(finding.agrees for finding in decisive)
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


def _of(part: int, whole: int, unit: str) -> str:
    return counted(whole, unit) if part == whole else f"{part:,} of {counted(whole, unit)}"


# ---- every check of a verdict as rows of a table

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


def summarise_checks(findings: Iterable[Finding]) -> list[CheckSummary]:
    """The findings by check, in the order in which the checks were made."""
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.name].append(finding)
    return [
        CheckSummary(
            name,
            len(group),
            disagreeing=sum(not finding.agrees for finding in group),
            advisory=all(finding.advisory for finding in group),
            worst=max(group, key=lambda finding: (not finding.agrees, finding.distance)),
        )
        for name, group in groups.items()
    ]


def check_table(text: VerdictText) -> list[str]:
    """One row for each check: verdict, comparisons, those that agree, the worst distance, and what is allowed."""
    summaries = {check.name: check for check in summarise_checks(text.verdict.findings)}
    names = dict.fromkeys([*summaries, *sorted(text.open_checks), *text.costs])
    rows = [[*COLUMNS, *(COST_COLUMNS if text.costs else ())]]
    rows += [[*_cells(text, name, summaries.get(name)), *_cost(text, name)] for name in names]
    return aligned(rows, left=2)


def _cells(text: VerdictText, name: str, check: CheckSummary | None) -> list[str]:
    is_open = name in text.open_checks
    if check is None:
        return [name, "open" if is_open else "", "", "", "", ""]
    mark = "advisory" if check.advisory else "no" if check.disagreeing else "open" if is_open else "yes"
    sizes = [f"{check.worst.distance:.3g}", f"{check.worst.allowed:.3g}"]
    return [name, mark, str(check.count), str(check.count - check.disagreeing), *sizes]


def _cost(text: VerdictText, name: str) -> list[str]:
    if not text.costs:
        return []
    cost = text.costs.get(name)
    return ["", ""] if cost is None else [str(cost.bytes), f"{cost.seconds:.4f}"]


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
