"""Places that are read again while their pages are open, so that a run which is being recorded grows there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Self

from tallystick.errors import TallyError
from tallystick.indexing.add import add_place
from tallystick.store.database.workload_database import WorkloadDatabase

PAUSE_SECONDS: Final = 2.0


class Following:
    """Reads what is new at some places every two seconds, from a thread, while its block lasts.

    A place that cannot be read is tried again; `tell` is told what is wrong with it, once.
    """

    def __init__(self, database: WorkloadDatabase, places: tuple[str, ...], tell: Callable[[str], None]) -> None:
        self._database, self._places, self._tell = database, places, tell
        self._problems: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="following", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def read(self) -> None:
        """Read every place in whole; raises what `add_place` raises."""
        for place in self._places:
            add_place(self._database, place, tensors=False)

    def read_on(self) -> None:
        """Read what is new at every place."""
        for place in self._places:
            try:
                add_place(self._database, place, tensors=False, whole=False)
                self._problems.pop(place, None)
            except TallyError as error:
                if self._problems.get(place) != str(error):
                    self._tell(str(error))
                self._problems[place] = str(error)

    def _follow(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            self.read_on()
