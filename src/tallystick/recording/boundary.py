"""Keeps the errors of a recorder out of the loop it records: the training is worth more than its record."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tallystick.core.errors import TallyError
from tallystick.engines.torch.training.trainer import first_line

Stop = Callable[[str], None]
LINE_MAX: Final = 1024
AROUND: Final = frozenset({"tallystick", "contextlib", "torch", "transformers", "accelerate", "lightning"})


@contextmanager
def contain_errors(stop: Stop) -> Iterator[None]:
    """Run a part of a recorder inside a custom training loop; an error is passed to `stop` as one line and ends there.

    The causes cannot be listed: tensors of other libraries, wrappers, disks, drivers. So every `Exception` is caught.
    No other place of the project does that. `KeyboardInterrupt` and `SystemExit` are no errors of a recorder and pass.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001
        stop(reason_of(error))


def reason_of(error: BaseException) -> str:
    """An error as one line: a `TallyError` as its message, any other with its type."""
    return str(error) if isinstance(error, TallyError) else first_line(error)


def ignore(_reason: str) -> None:
    """Ignore a reason: a better one was given already, or nobody can act on it."""


def printable(line: str) -> str:
    """A text as one line of printable characters, cut to the length that a claim or a record allows."""
    return "".join(character if character.isprintable() else " " for character in line)[:LINE_MAX]


def warn(line: str) -> None:
    """Issue `line` as a `RuntimeWarning`, at the line of the loop that called the recorder.

    Where warnings are errors (`python -W error`) it is printed instead: it must not end the loop.
    """
    try:
        warnings.warn(line, RuntimeWarning, stacklevel=_level_of_the_loop())
    except RuntimeWarning:
        print(f"RuntimeWarning: {line}", file=sys.stderr)


def _level_of_the_loop() -> int:
    """How many calls lie between `warn` and the first code that is neither ours nor a library's around it."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in AROUND:
        frame, level = frame.f_back, level + 1
    return level
