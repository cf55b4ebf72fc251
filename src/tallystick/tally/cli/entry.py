"""The entry point: other names of commands, one line for whatever goes wrong, an exit code, and plain output."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, TextIO

from tallystick import __version__
from tallystick.core.errors import TallyError, UnavailableError, UsageError, without_passwords
from tallystick.core.lazy import load_name, not_installed

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# What people type where a command has another name: it is done all the same, and the name is said on stderr.

NAMES: Final = {"keygen": "new-key", "replay": "audit", "export": "export-model"}
SPELLINGS: Final = {"help": "--help", "version": "--version"}
"""Commands elsewhere, options here: they are what they say, and nothing has to be said about them."""
VERIFY: Final = ("verify", "check")
MODEL: Final = "--model"
OPENING: Final = "opening.json"
LEAF: Final = ".leaf"


def resolve_alias(arguments: list[str]) -> list[str]:
    """The arguments with the real name of a command in place of one that people try.

    >>> resolve_alias(["help", "audit"])
    ['audit', '--help']
    """
    word, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if word in SPELLINGS:
        return [*(_named(rest) if rest else []), SPELLINGS[word]]
    return _named(arguments)


def _named(arguments: list[str]) -> list[str]:
    word, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    real = _verifier(word, rest) if word in VERIFY else NAMES.get(word)
    if real is None:
        return arguments
    print(f"note: `tally {word}` is `tally {real}`", file=sys.stderr)
    return [real, *rest]


def _verifier(word: str, rest: list[str]) -> str:
    """The command that checks what is given: a run, an opening, the bundle of one operator, or an answer.

    Raises:
        UsageError: nothing is given.
        UnavailableError: it is not there.
    """
    if MODEL in rest:
        return "verify-response"
    target = next((each for each in rest if not each.startswith("-")), None)
    if target is None:
        raise UsageError(f"`tally {word}` of what? `tally audit RUN`, or `tally verify-response RECEIPT --model DIR`")
    path = Path(target)
    if not path.exists():
        raise UnavailableError(f"{target}: no such file or directory")
    if path.is_dir():
        return "judge" if (path / OPENING).is_file() else "audit"
    return "referee" if path.suffix == LEAF else "verify-response"


# What ends a command from outside: `kill` unwinds it as Ctrl-C does, so that what it holds is put away.


class Terminated(BaseException):
    """SIGTERM arrived; no error, so nothing that a command catches stops it."""


def listen() -> None:
    """Raise `Terminated` in the main thread when SIGTERM arrives."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would cut short what the first one began
    raise Terminated


# Any terminal can be printed to: characters it lacks are replaced; messages that cannot be written are dropped.

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
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)


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


# The entry point: one line for whatever goes wrong, and an exit code that says whose fault it was.

APPLICATION: Final = "tallystick.tally.cli.application"
"""What knows the commands; `tally --help` is printed without it."""
COMPLETE: Final = "_TALLY_COMPLETE"
"""Set where a shell asks what may follow; `tally completion` prints the script that does it."""
INPUT_EXIT = 4
INTERRUPTED_EXIT = 130
TERMINATED_EXIT = 143
"""128 and the number of the signal, as in shells; 141 is the same for a reader of the output that is gone."""
READER_LEFT_EXIT = 141
MISTAKE_MAX = 500
TRACEBACK = "TALLY_TRACEBACK"
"""Set to anything, an error is shown with its traceback."""
HELP_PAGE: Final = Path(__file__).with_name("root_help.txt")
"""What `tally --help` prints, written by `python scripts/root_page.py`: so nothing is loaded for it."""
BEGINNING: Final = """\
tally makes ML compute verifiable: record training or the answers of a model,
replay any part, judge the difference.

Begin with these:
  tally demo                         honest runs accepted, frauds caught
  tally example llama-tiny           write a recipe here, and say how to train it
  tally audit run                    replay part of that run and give a verdict

Go on with:
  tally help                         all commands, by role
  tally help COMMAND                 one command and its options
  tally verify-response              check answers of a model by their receipts
  tally coordinator                  run a network that settles disputes
  import tallystick                  the same from Python
"""


def main() -> None:
    """Run `tally` and exit."""
    open_streams()
    listen()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler of PyTorch, once loaded, talks on stderr
    code = run(sys.argv[1:])
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run `tally` with `arguments` and return its exit code."""
    try:
        arguments = resolve_alias(arguments)
        is_short = len(arguments) < 2 and COMPLETE not in os.environ
        at_once = _answer_at_once("".join(arguments)) if is_short else None
        code = _invoke(arguments) if at_once is None else at_once
        sys.stdout.flush()  # what is printed counts as written only now
    # Whatever nobody foresaw ends here, and only here, in one line and a code that is no verdict: left to itself it
    # would exit with 1, and 1 means rejected.
    except BaseException as error:  # noqa: BLE001
        if os.environ.get(TRACEBACK):
            import traceback

            traceback.print_exception(error)
        code = _told(error, arguments)
        try:  # what was printed before; where it cannot be written, nobody is told that as well
            sys.stdout.flush()
        except OSError:
            close_stdout()
    return code


def _answer_at_once(word: str) -> int | None:
    """Print what needs no command, and return the exit code; `None` where a command is named."""
    if word == "":
        print(BEGINNING, end="", file=sys.stderr)
        return 2  # nothing was done, as after a usage error
    if word in ("--help", "-h"):
        print(HELP_PAGE.read_text("utf-8"), end="")
    elif word == "--version":
        print(f"tally {__version__}")
    else:
        return None
    return 0


def _invoke(arguments: list[str]) -> int:
    """What a command returns; errors travel, where typer's own `main` would turn some of them into exit code 1."""
    import typer

    if COMPLETE in os.environ:
        return int(load_name(APPLICATION, "complete")(os.environ[COMPLETE]))
    command = load_name(APPLICATION, "application")()
    try:
        with command.make_context("tally", list(arguments)) as context:
            result = command.invoke(context)
    except typer.Exit as leaving:
        return leaving.exit_code
    return result if isinstance(result, int) else 0


def _told(error: BaseException, arguments: list[str]) -> int:
    """Say in one line what went wrong; returns the exit code."""
    if isinstance(error, TallyError):
        return _say(str(error), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return _say(str(error) or "interrupted", INTERRUPTED_EXIT)
    if isinstance(error, Terminated):
        return _say(str(error) or "terminated", TERMINATED_EXIT)
    if _is_reader_gone(error):
        close_stdout()
        return READER_LEFT_EXIT
    if isinstance(error, ModuleNotFoundError):
        return _say(str(not_installed(error.name or str(error))), INPUT_EXIT)
    if isinstance(error, OSError):
        if error.filename == OUTPUT:
            close_stdout()
        return _say(f"{error.strerror or error}: {error.filename or 'while reading or writing'}", INPUT_EXIT)
    if isinstance(error, MemoryError):
        return _say("out of memory", INPUT_EXIT)
    import typer

    if isinstance(error, typer.TyperException):
        usage = str(load_name(APPLICATION, "usage_line")(error, arguments))
        if "\n" not in usage:
            return _say(usage, 2)
        print(usage, file=sys.stderr)  # the whole help, where nothing was asked
        return 2
    what = " ".join(f"{type(error).__name__}: {error}".split())[:MISTAKE_MAX]
    return _say(
        f"this is a mistake of tallystick's: {what}; please report it (set {TRACEBACK}=1 to see where)", INPUT_EXIT
    )


def _is_reader_gone(error: BaseException) -> bool:
    """Whether stdout is a pipe that nobody reads any more; `rich` makes a `SystemExit(1)` of it."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(cause, BrokenPipeError) and cause.filename == OUTPUT


def _say(message: str, code: int) -> int:
    line = "".join(character if character.isprintable() else "\ufffd" for character in without_passwords(message))
    print(f"tally: {line}", file=sys.stderr)
    return code
