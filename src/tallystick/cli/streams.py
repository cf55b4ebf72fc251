"""Any terminal can be printed to: characters it lacks are replaced; messages that cannot be written are dropped."""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PLAINER: Final = "tallystick.plainer"
OUTPUT: Final = "the output"
ASCII: Final = "tallystick_ascii"
STDOUT, STDERR = 1, 2
PAIRS: Final = (
    "✓ ok, ✗ no, – -, — -, − -, … ..., · ., ≤ <=, ≥ >=, ≠ !=, ≈ ~, ± +-, × x, √ sqrt, ∞ inf, → ->, ← <-, "
    '“ ", ” ", ‖ ||, ε eps, µ u, σ sigma'
)
IN_ASCII: Final = dict(pair.split(" ") for pair in PAIRS.split(", "))
"""What is written for characters that neither are letters with an accent nor have a plain form in Unicode."""


class OutputFile(io.FileIO):
    """Stdout, whose errors name it: otherwise a full disk could not be told from a reader that is gone."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write; raises `OSError` with `OUTPUT` as its file."""
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, OUTPUT) from None


class PatientFile(io.FileIO):
    """A file that drops what cannot be written; only messages go there."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write what can be written, and report that all was."""
        with suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


def plainer(error: UnicodeError) -> tuple[str, int]:
    """A handler of `codecs` that replaces characters a terminal lacks by others that it has.

    >>> codecs.register_error(PLAINER, plainer)
    >>> "5 ≤ 7 ✓ é 日".encode("ascii", PLAINER)
    b'5 <= 7 ok e ?'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_in_ascii, error.object[error.start : error.end])), error.end


def open_streams() -> None:
    """Make stdout and stderr take any character, ignore errors of stderr, and open both where they were closed.

    Otherwise the next file that is opened would get their number, and what is printed would go into it.
    """
    codecs.register_error(PLAINER, plainer)
    codecs.register(_find_codec)
    for number in (0, STDOUT, STDERR):
        _open_where_closed(number)
    sys.stdout = _text(OutputFile(STDOUT, "w", closefd=False), sys.stdout)
    sys.stderr = _text(PatientFile(STDERR, "w", closefd=False), sys.stderr)


def close_stdout() -> None:
    """Drop what could not be printed, so that the interpreter does not report it again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT)
    os.close(nowhere)
    with suppress(OSError):
        sys.stdout.flush()


def _open_where_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        found = os.open(os.devnull, os.O_RDWR)
        if found != number:
            os.dup2(found, number)
            os.close(found)


def _text(file: io.FileIO, before: TextIO | None) -> TextIO:
    encoding = _own_name(before.encoding if before is not None else "utf-8")
    is_seen = file.isatty() or isinstance(file, PatientFile)
    return io.TextIOWrapper(io.BufferedWriter(file), encoding, PLAINER, line_buffering=is_seen)


def _own_name(encoding: str) -> str:
    """ASCII goes by a name that typer does not know: it would write UTF-8 to a terminal that said it has none."""
    return ASCII if codecs.lookup(encoding).name == "ascii" else encoding


def _find_codec(name: str) -> codecs.CodecInfo | None:
    if name != ASCII:
        return None
    known = codecs.lookup("ascii")
    parts = (known.streamreader, known.streamwriter, known.incrementalencoder, known.incrementaldecoder)
    return codecs.CodecInfo(known.encode, known.decode, *parts, name=ASCII)


def _in_ascii(character: str) -> str:
    if character in IN_ASCII:
        return IN_ASCII[character]
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"
