"""Whether a page shows what was printed."""

from __future__ import annotations

import re
from typing import Final

MASKS: Final = (
    (r"\b(127\.0\.0\.1|localhost):\d+", r"\1:PORT"),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
    (r"\b\d+:\d\d(:\d\d)?(\.\d+)?( ?UTC|Z)?\b", "TIME"),
    (r"\b[0-9a-f]{8,}\b", "HEX"),
    (r"\b\d+\.\d+\.\d+(\.?[a-z]+\d*)?(\+\w+)?\b", "VERSION"),
    (r"\b[\d,]+(\.\d+)? ?(ms|s|seconds?|min|minutes?|h|hours?|(steps?|tokens?)/s)\b", "DURATION"),
    (r"\b\d+\.\d(?= [a-z][a-z -]+(,|$))", "DURATION"),  # as in `seconds: 3.1 start-up, 12.0 replay`
    (r"\s+", " "),
    (r"([━─═—])\1+|[-=]{3,}", "RULE"),
)
"""What is another text each time, with what stands for it: the one place that says so."""
ANY: Final = "…"


def masked(line: str) -> str:
    """A line without the parts that differ from run to run and from machine to machine."""
    for pattern, stands_for in MASKS:
        line = re.sub(pattern, stands_for, line)
    return line.strip()


def lines_of(text: str) -> list[str]:
    return [line for line in map(masked, text.splitlines()) if line]


def shows(shown: str, printed: str) -> bool:
    """Whether `printed` is what the page shows; `…` stands for anything, alone on a line for any lines."""
    return (
        re.fullmatch("".join(map(pattern_of, lines_of(shown))), "".join(f"{each}\n" for each in lines_of(printed)))
        is not None
    )


def pattern_of(line: str) -> str:
    if line == ANY:
        return r"(?:.*\n)*"
    return ".*".join(map(re.escape, line.split(ANY))) + r"\n"
