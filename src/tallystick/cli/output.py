"""How results are printed: data on stdout, messages on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.commitments.encoding import Json, encode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def print_json(value: Json) -> None:
    """One canonical JSON line on stdout."""
    sys.stdout.buffer.write(encode(value) + b"\n")
    sys.stdout.flush()


def show(found: Json, text: str, as_json: bool) -> None:
    """Print a result on stdout: as JSON, or as text."""
    print_json(found) if as_json else print(text)


def talk() -> Console:
    """The console for people, on stderr; honours NO_COLOR."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def page() -> Console:
    """The console for tables, on stdout."""
    from rich.console import Console

    return Console(highlight=False)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr with time spent and room for a message."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[seen]}"), console=talk(), transient=False) as bar:
        yield bar


def read_entries(path: Path) -> list[str]:
    """The lines of a file that are not empty, without blanks around; raises `MalformedError` where they are no text."""
    from tallystick.errors import MalformedError

    try:
        return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise MalformedError(f"{path}: byte {error.start} is not UTF-8") from None


def existing(path: Path, what: str) -> Path:
    """`path`, or an `UnavailableError` that says what should have been there."""
    from tallystick.errors import UnavailableError

    if not path.exists():
        raise UnavailableError(f"{path}: no such {what}")
    return path
