"""Puts the output of the example's two audits, and the size of the trusted base, into the README."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from trusted_base import measure, sentence

README = Path(__file__).resolve().parent.parent / "README.md"
FORGED_SHOWN = re.compile(r"^(REJECTED|objection|replayed)")


def block(lines: list[str]) -> str:
    """Lines as an indented block."""
    return "\n".join(f"    {line}".rstrip() for line in lines)


def between(text: str, command: str, body: str) -> str:
    """`text` with the indented block behind `command` replaced."""
    pattern = re.compile(
        rf"({re.escape('    $ ' + command)}\n\n)(?:@@\w+@@|(?:    [^\n]*\n|\n)*?    [^\n]*)(\n\n)(?=\S)"
    )
    found, count = pattern.subn(lambda match: match.group(1) + body + match.group(2), text)
    assert count == 1, f"the README does not show `{command}` once"
    return found


def main(audit: Path, forged: Path) -> None:
    """Rewrite the README."""
    text = README.read_text()
    text = between(text, "tally audit run --samples 8", block(audit.read_text().splitlines()))
    shown = [line for line in forged.read_text().splitlines() if FORGED_SHOWN.match(line)]
    text = between(text, "tally audit forged --full", block(shown))
    text = re.sub(r"[\d,]+ lines for an audit, [^(]*?replays with", sentence(measure()), text)
    README.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
