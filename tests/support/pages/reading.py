"""A page as the blocks that it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

NOTES: Final = {
    "sh": {"terminal", "exit", "until", "needs"},
    "python": {"terminal", "exit", "until", "file", "needs"},
    "toml": {"file"},
    "json": {"file"},
    "text": {"terminal", "stream", "needs"},
}
"""The kinds of blocks, and the notes that each may carry."""
NEEDS: Final = {"vllm"}
"""What a block may need that is not installed everywhere."""
SHOWN: Final = {
    "file": r"File `([^`\n]+)`",
    "terminal": r"(?:A second terminal,|A third terminal,|Terminal) `(\w+)`",
    "exit": r"Exit code (\d+)",
}
"""Notes that a reader of the rendered page needs as well: text in bold, with a colon at its end."""
HIDDEN: Final = re.compile(r"<!-- (\w+): (.*) -->")
NOTE_LINE: Final = r"<!-- \w+: [^\n]* -->|\*\*[^\n]*:\*\*"
FENCED: Final = re.compile(rf"((?:^(?:{NOTE_LINE})\n)*)^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class PageError(Exception):
    """A page is not written in the form of pages, or does not do what it says."""


@dataclass(frozen=True)
class Block:
    """A fenced block, its kind, the notes above it, and the line of the page on which its text begins."""

    kind: str
    text: str
    line: int
    notes: Mapping[str, str]

    @property
    def terminal(self) -> str:
        return self.notes.get("terminal", "main")

    @property
    def stream(self) -> str:
        return self.notes.get("stream", "stdout")


def read_page(page: str) -> list[Block]:
    """The blocks of a page, in order; raises `PageError` where one could be read, and would not be run."""
    blocks = [
        Block(match[2], match[3], page.count("\n", 0, match.start(3)) + 1, dict(map(read_note, match[1].splitlines())))
        for match in FENCED.finditer(page)
    ]
    for block in blocks:
        check_block(block)
    check_rest(FENCED.sub(lambda match: "\n" * match[0].count("\n"), page))
    return blocks


def read_note(line: str) -> tuple[str, str]:
    """The name and the value of a note; raises `PageError` for one that should be seen, or that is none."""
    if hidden := HIDDEN.fullmatch(line):
        if hidden[1] in SHOWN:
            raise PageError(f"a reader of the page does not see {line}: write it as text")
        return hidden[1], hidden[2]
    found = [(name, match[1]) for name, form in SHOWN.items() if (match := re.fullmatch(rf"\*\*{form}:\*\*", line))]
    if not found:
        raise PageError(f"{line!r} stands above a fence and is no note")
    return found[0]


def check_block(block: Block) -> None:
    """Refuse a kind of block that nothing runs, and notes that mean nothing on it."""
    if block.kind not in NOTES:
        raise PageError(f"line {block.line}: a block of kind {block.kind!r} is not run; there are {', '.join(NOTES)}")
    unknown = set(block.notes) - NOTES[block.kind]
    if unknown:
        raise PageError(f"line {block.line}: a {block.kind} block has no note {', '.join(sorted(unknown))}")
    if NOTES[block.kind] == {"file"} and "file" not in block.notes:
        raise PageError(f"line {block.line}: nothing says into which file this goes: **File `NAME`:**")
    if not {block.notes.get("needs", "vllm")} <= NEEDS:
        raise PageError(f"line {block.line}: nothing can need {block.notes['needs']}; there is {', '.join(NEEDS)}")
    if block.stream not in {"stdout", "stderr"}:
        raise PageError(f"line {block.line}: there is no stream {block.stream}")


def check_rest(rest: str) -> None:
    """Refuse blocks that stand outside fences, or whose fence is indented: a reader would paste them."""
    lines = ["", *rest.splitlines()]
    for number, (before, line) in enumerate(pairwise(lines), start=1):
        if line.lstrip().startswith("```") or (line.startswith("    ") and not before.strip()):
            raise PageError(f"line {number}: a block that is run is fenced, and begins at the left margin")
