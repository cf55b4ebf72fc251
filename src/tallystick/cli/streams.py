"""What is printed reaches any terminal: characters it lacks are replaced, and talk that finds no way is dropped."""

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
    """Stdout, whose errors say so: whoever left, or which disk is full, is otherwise not to be known."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write; raises `OSError` with `OUTPUT` as its file."""
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, OUTPUT) from None


class PatientFile(io.FileIO):
    """A file that swallows what cannot be written: nothing is lost by it but talk."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as much as goes, and say that it was all."""
        with suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


def plainer(error: UnicodeError) -> tuple[str, int]:
    """A handler of `codecs` that writes characters a terminal lacks in others that it has.

    >>> codecs.register_error(PLAINER, plainer)
    >>> "5 ≤ 7 ✓ é 日".encode("ascii", PLAINER)
    b'5 <= 7 ok e ?'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_in_ascii, error.object[error.start : error.end])), error.end


def open_streams() -> None:
    """Make stdout and stderr take any character, stderr any trouble, and stand where they were closed.

    Without the latter, the next file opened would have their number, and whoever prints would write into it.
    """
    codecs.register_error(PLAINER, plainer)
    codecs.register(_find_codec)
    for number in (0, STDOUT, STDERR):
        _open_where_closed(number)
    sys.stdout = _text(OutputFile(STDOUT, "w", closefd=False), sys.stdout)
    sys.stderr = _text(PatientFile(STDERR, "w", closefd=False), sys.stderr)


def close_stdout() -> None:
    """Give up what could not be printed, so that the interpreter does not complain of it once more at its end."""
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
