"""How every command prints a verdict."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from tallystick.judging.verdict import Outcome, Verdict
    from tallystick.presentation.verdict_text import VerdictText

VERBOSE: Final[Any] = typer.Option(False, "--verbose", "-v", help="Show every check, and what the verdict assumes.")
BOLD: Final[dict[Outcome, str]] = {"accepted": "1;32", "rejected": "1;31", "inconclusive": "1;33"}
"""The colours in which a terminal shows the outcome: green, red, yellow."""


def show_verdict(verdict: Verdict, subject: str, as_json: bool, verbose: bool) -> int:
    """Print a verdict as JSON or as text; returns the exit code."""
    from tallystick.cli.output import print_json
    from tallystick.presentation.verdict_text import VerdictText

    if as_json:
        print_json(verdict.to_json())
    else:
        print_verdict(VerdictText(verdict, subject), verbose)
    return verdict.exit_code


def print_verdict(text: VerdictText, verbose: bool) -> None:
    """Print the verdict and why, what was not checked, and what passed; with `verbose`, every check."""
    first, *others = text.lines(verbose)
    outcome = text.verdict.outcome
    print(first.replace(outcome.upper(), coloured(outcome.upper(), BOLD[outcome]), 1), *others, sep="\n")


def coloured(word: str, code: str) -> str:
    """`word` in a colour, where stdout is a terminal that shows colours."""
    is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return word if is_plain else f"\x1b[{code}m{word}\x1b[0m"
