"""Reads the files of an opening that `tally open --operators` wrote; the format is in `transcripts.opening`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, UnavailableError
from tallystick.store.log import read_lines
from tallystick.transcripts.opening import Opening

OPENING: Final = "opening.json"
OPERATORS: Final = "operators.jsonl"
OPERATOR: Final = "operator.json"
GRAPH: Final = "graph.json"
OPERATORS_MAX: Final = 1 << 20


def read_opening(folder: Path) -> Opening:
    """The statement of an opening; raises `UnavailableError` if the file is missing, `MalformedError` if invalid."""
    opening = Opening.from_bytes(read_document(folder / OPENING), OPENING)
    if opening.version == 1:
        raise MalformedError(
            f"{OPENING}: version 1 keeps a file for each value, and is read no more; open the step again"
        )
    return opening


def read_operator_lines(folder: Path) -> list[bytes]:
    """The lines of the operator records; raises `UnavailableError` if there is no file, or if there are too many."""
    lines: list[bytes] = []
    for line in read_lines(folder / OPERATORS):
        if len(lines) >= OPERATORS_MAX:
            raise UnavailableError(f"{OPERATORS}: more than the {OPERATORS_MAX} records allowed")
        lines.append(line)
    return lines
