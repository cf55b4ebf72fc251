"""The common part of recorders that work by callbacks: the run begins at the first batch, inside the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tallystick.frameworks.torch.wrappers import inner_model, require_whole
from tallystick.recorders.attachments import NOTHING, Attachments
from tallystick.recorders.boundary import say
from tallystick.recorders.draws import require_seed
from tallystick.recorders.graph_source import captured
from tallystick.recorders.loop_recorder import OwnLoopRecorder
from tallystick.recorders.own_kernels import own_kernels
from tallystick.recorders.preflight import Blocker
from tallystick.recorders.step_graph import StepGraph
from tallystick.store.lock import RunLock, lock_new_run, require_free
from tallystick.store.run import RunDirectory
from tallystick.transcripts.recipe import RecordRecipe

Capture = Callable[[], StepGraph]


class CallbackRecording:
    """One run: settings are read before the training, and the recorder begins and ends inside it.

    Raises `UsageError` if `run_dir` is not empty or a setting is unknown. Nothing is raised after that.
    """

    def __init__(
        self,
        run_dir: str | Path,
        who: str,
        description: Mapping[str, str] | None,
        recorded: Mapping[str, object],
        seed: int | None = None,
        attached: Attachments = NOTHING,
    ) -> None:
        self._folder, self._who, self.seed = Path(run_dir), who, require_seed(seed, who)
        require_free(self._folder)
        self._settings = RecordRecipe.from_json(dict(recorded), who)  # type: ignore[arg-type]
        self._description = dict(description or {})
        self._attached = attached
        self._recorder: OwnLoopRecorder | None = None
        self._lock: RunLock | None = None
        self._kernels = ExitStack()
        self._is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether a training is or was recorded."""
        return self._recorder is not None or self._is_over

    @property
    def is_open(self) -> bool:
        """Whether steps are being recorded now."""
        return self._recorder is not None and not self._is_over

    def begin(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        loop: Mapping[str, str],
        capture: Capture,
        blockers: Sequence[Blocker],
    ) -> None:
        """Lock the directory, capture the step, and save the state before it; `blockers` are known already.

        Raises `UnavailableError` for a sharded model, before anything is written.
        """
        require_whole(inner_model(model))
        self._lock = lock_new_run(self._folder)
        described = {**loop, **self._description}
        run = RunDirectory(self._folder)
        self._kernels.enter_context(own_kernels(inner_model(model)))
        source = captured(capture, blockers)
        self._recorder = OwnLoopRecorder(run, model, optimizer, self._settings, described, source, self._attached)

    def enter_forward(self, given: Mapping[str, Any]) -> None:
        """Begin inside a hook of the model, which begins to run with what is `given`."""
        if self.is_open:
            assert self._recorder is not None
            self._recorder.enter_forward(given)

    def step(self, losses: list[torch.Tensor], is_scaled: bool, batches: list[Any]) -> None:
        """Record a step over micro-batches; losses are added if `is_scaled`, and averaged otherwise."""
        assert self._recorder is not None
        total = torch.stack(losses).sum() if is_scaled else torch.stack(losses).mean()
        self._recorder.step(total, batches[0] if len(batches) == 1 else batches)

    def finish(self) -> None:
        """Save the last state and write the claim."""
        if self.is_open:
            assert self._recorder is not None
            self._recorder.finish()
            self._end()

    def fail(self, error: BaseException) -> None:
        """Record that a step crashed."""
        if self.is_open:
            assert self._recorder is not None
            self._recorder.fail(error)
            self._end()

    def stop(self, reason: str) -> None:
        """End the recording, and warn once with the reason."""
        if self._is_over:
            return
        if self._recorder is None:
            say(f"the training is not recorded and goes on: {reason}")
        else:
            self._recorder.stop(reason)
        self._end()

    def leave_out(self) -> None:
        """Record nothing: another process records the training."""
        self._is_over = True

    def refuse_another(self) -> None:
        """Warn that a second training is not recorded; the first run stays as it is."""
        again = f"one {self._who} records one training; give the next one another, with a directory of its own"
        self.stop(again)
        say(f"this training is not recorded and goes on: {again}")

    def _end(self) -> None:
        self._is_over = True
        self._kernels.close()
        if self._lock is not None:
            self._lock.release()
