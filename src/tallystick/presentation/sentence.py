"""A verdict as a sentence or two: how much was judged, how it came out, and what a sample excludes."""

from __future__ import annotations

from typing import Final

from tallystick.judging.verdict import Verdict, VerdictCoverage
from tallystick.presentation.confidence import CONFIDENCE, excluded_from

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
    bound, drawn = bad_fewer_than(verdict), _drawn(coverage, coverage.drawn)
    if bound is None:
        return f" {drawn}, too few to say anything about the other {rest:,}."
    return f" {drawn}: with {PERCENT} confidence fewer than {bound:,} of the other {rest:,} are bad."


def _drawn(coverage: VerdictCoverage, drawn: int) -> str:
    """How many of those that were judged are the sample; a replay also passes those on the way to it."""
    if drawn < coverage.done:
        return f"{drawn:,} of them {'was' if drawn == 1 else 'were'} drawn at random"
    return f"{'It was' if drawn == 1 else 'They were'} drawn at random"
