"""Puts the output of the README's examples, and the size of the trusted base, into the README."""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from pathlib import Path

from trusted_base import SENTENCE, make_inputs, measure, sentence

WIDTH = 116
README = Path(__file__).resolve().parent.parent / "README.md"


def block(path: Path) -> str:
    """An output as an indented block."""
    return "\n".join(f"    {line}".rstrip() for line in path.read_text().splitlines())


def between(text: str, command: str, body: str) -> str:
    """`text` with the indented block behind `command` replaced."""
    pattern = re.compile(
        rf"({re.escape('    $ ' + command)}\n\n)(?:@@\w+@@|(?:    [^\n]*\n|\n)*?    [^\n]*)(\n\n)(?=\S)"
    )
    found, count = pattern.subn(lambda match: match.group(1) + body + match.group(2), text)
    assert count == 1, f"the README does not show `{command}` once"
    return found


def main(stage: Path) -> None:
    """Rewrite the README from the outputs that lie in `stage`."""
    text = README.read_text()
    text = between(text, "tally audit run --samples 8", block(stage / "audit.txt"))
    text = between(text, "tally audit forged --full", block(stage / "forged.txt"))
    for name, file in (("receipt", "receipt.txt"), ("forged", "quantised.txt")):
        command = f"tally verify-response {name}.json --model model"
        text = between(text, command, block(stage / file))
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(Path(folder))
        stated = sentence(measure(Path(folder)))
    text = re.sub(SENTENCE, "\n".join(textwrap.wrap(stated, WIDTH)), text)
    README.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
