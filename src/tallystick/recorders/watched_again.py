"""Watches later steps of a loop whose first was watched: those whose batches are the first of their kind."""

from __future__ import annotations

from collections.abc import Callable

from tallystick.recorders.first_step import FirstStep
from tallystick.recorders.step_graph import Batches, Recapture, StepGraph


class WatchedAgain:
    """Watches from `start` to `stop`; called then, it captures the step that was watched.

    `watch` makes a watch for a step. `otherwise` captures a step that was not watched.
    """

    def __init__(self, watch: Callable[[], FirstStep], otherwise: Recapture) -> None:
        self._watch, self._otherwise = watch, otherwise
        self._step: FirstStep | None = None

    def start(self) -> None:
        """Watch the step that begins."""
        if self._step is None:
            self._step = self._watch()
            self._step.start()

    def stop(self) -> None:
        """Watch no longer."""
        if self._step is not None:
            self._step.stop()

    def forget(self) -> None:
        """Drop what was watched."""
        self._step = None

    def __call__(self, batch: Batches, count: int) -> StepGraph:
        """The step of a batch; raises `UnavailableError` with the reason why it cannot be captured."""
        if self._step is None:
            return self._otherwise(batch, count)
        return self._step.graph(batch, lambda _: True)
