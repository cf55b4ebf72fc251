"""How results are printed, and how a command takes memory from the system."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any, Final

from tallystick.core.canonical_json import Json, encode
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.http import server as http
from tallystick.formats.data import corpus as corpora
from tallystick.verdicts import words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


# How results are printed: data on stdout, messages on stderr.

MEGABYTE: Final = 10**6


def print_json(value: Json) -> None:
    """One canonical JSON line on stdout."""
    sys.stdout.buffer.write(encode(value) + b"\n")
    sys.stdout.flush()


def show(result: Json, text: str, as_json: bool) -> None:
    """Print a result on stdout: as JSON, or as text."""
    print_json(result) if as_json else print(text)


def is_stdout_open_to_others() -> bool:
    """Whether stdout is a file that other users of this machine can read."""
    status = os.fstat(1)
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & (stat.S_IRGRP | stat.S_IROTH))


def talk() -> Console:
    """The console for people, on stderr; honours NO_COLOR. Brackets in what it prints, as in a path, are no markup."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def page() -> Console:
    """The console for tables, on stdout."""
    from rich.console import Console

    return Console(highlight=False)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr with time spent and room for a message; none where nothing began before an error."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[seen]}"), console=talk(), transient=False) as bar:
        try:
            yield bar
        except BaseException:
            bar.live.transient = not any(task.completed for task in bar.tasks)
            raise


def corpus_task(bar: Progress, doing: str, directory: Path | None) -> Callable[[int], None]:
    """A task that counts the MB of a corpus, told how many more bytes are done; none where there is no corpus."""
    if directory is None or not directory.is_dir():
        return corpora.silent
    total, done = sum(file.size for file in corpora.list_shards(directory)), 0
    task = bar.add_task(f"{doing}, MB", total=-(-total // MEGABYTE), seen="")

    def advance(count: int) -> None:
        nonlocal done
        done += count
        bar.update(task, completed=-(-done // MEGABYTE))

    return advance


def read_entries(path: Path) -> list[str]:
    """The lines of a file that are not empty, without blanks around; raises `MalformedError` where they are no text."""
    try:
        return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise MalformedError(f"{path}: byte {error.start} is not UTF-8") from None


def serve_until_interrupted(application: Any, listening: socket) -> None:
    """Answer what comes to a socket until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        http.http_server(application).run(sockets=[listening])
    talk().print("stopped")


def existing(path: Path, what: str) -> Path:
    """`path`, or an `UnavailableError` that says what should have been there."""
    if not path.exists():
        raise UnavailableError(f"{path}: no such {what}")
    return path


def print_table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Tab-separated lines, which other programs read too; a terminal gets them in columns."""
    texts = [["" if value is None else words.printable(str(value)) for value in row] for row in rows]
    if not sys.stdout.isatty():
        print("\n".join("\t".join(line) for line in [list(columns), *texts]))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None)
    for line in texts:
        table.add_row(*map(Text, line))  # as it is: brackets in it are no markup
    page().print(table)


# How a command takes memory from the system.

TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
"""The numbers of these parameters in glibc's `mallopt`."""
MAPPED_BYTES: Final = 32 << 20
"""Arrays below this size come from memory that is kept; glibc takes no larger threshold."""
KEPT_BYTES: Final = 1 << 30


def keep_freed_memory() -> None:
    """Let the C library keep up to 1 GiB of freed memory for the next arrays; nothing happens without glibc.

    By default it returns the memory of large arrays, and the system clears it page by page when the next array needs
    it. A command that makes and drops copies of a model spends a good part of its time on that.
    """
    import ctypes  # no help of a command has to wait for it

    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(MMAP_THRESHOLD, MAPPED_BYTES)
        tune(TRIM_THRESHOLD, KEPT_BYTES)
