"""Nothing that a recorder meets reaches the loop it records: the training is worth more than its record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tallystick.errors import TallyError
from tallystick.frameworks.torch.training.trainer import first_line

Stop = Callable[[str], None]


@contextmanager
def sheltered(stop: Stop) -> Iterator[None]:
    """Run a part of a recorder inside somebody's loop; an error goes to `stop` as one line and no further.

    A loop meets what no list foresees: tensors of other libraries, wrappers, disks, drivers. So every `Exception` ends
    here, and this is the only place of the project where that is so. `KeyboardInterrupt` and `SystemExit` are no
    errors of a recorder, and pass.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001
        stop(reason_of(error))


def reason_of(error: BaseException) -> str:
    """One line: what tallystick itself says as it is, anything else with its kind."""
    return str(error) if isinstance(error, TallyError) else first_line(error)


def unsaid(_reason: str) -> None:
    """Say nothing: something better was said already, or nobody can do anything about it."""


def say(line: str) -> None:
    """Tell the person whose loop it is."""
    warnings.warn(line, RuntimeWarning, stacklevel=2)
