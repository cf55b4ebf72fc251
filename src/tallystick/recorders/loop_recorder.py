"""Records the steps of a custom training loop, and raises nothing into it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tallystick.errors import UnavailableError, UsageError
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.state import generator_state, live_tensors
from tallystick.frameworks.torch.tensors import from_tensor, to_tensor
from tallystick.frameworks.torch.training.summaries import Summariser
from tallystick.frameworks.torch.wrappers import inner_model, inner_optimizer, require_whole
from tallystick.recorders.batches import describe_batch
from tallystick.recorders.boundary import say, sheltered, unsaid
from tallystick.recorders.first_step import FirstStep
from tallystick.recorders.graph_guard import STEPS_BETWEEN, GraphGuard, Observed
from tallystick.recorders.graph_source import GraphSource, without_graph
from tallystick.recorders.last_segment import RecordedStep
from tallystick.recorders.run_recorder import RunRecorder
from tallystick.recorders.step_graph import keep_batch
from tallystick.recorders.step_watch import Stepped, StepWatch
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.recipe import RecordRecipe
from tallystick.transcripts.record import Batch
from tallystick.transcripts.spec import Spec
from tallystick.workloads.plan import projection_seed

NO_RATE = "no-rate"
"""The tag of a step whose optimizer states no learning rate; its record has rate 0."""
CHANGED_AT_END = "the weights were changed after the last record; do that after the recording, or record the last step"


class OwnLoopRecorder:
    """Records the steps of a custom training loop, and raises nothing into it.

    With a step graph, the state holds exactly what the graph carries from step to step, and every batch is kept. At
    some steps the graph is compared with the loop, and withdrawn if it does not reproduce the step. A graph that the
    first step gives is known after it; the state before the step is kept until then. If recording fails, one
    `RuntimeWarning` is issued. The run then ends at its last anchor, and the loop goes on.
    """

    def __init__(
        self,
        run: RunDirectory,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        recorded: RecordRecipe,
        description: Mapping[str, str],
        source: GraphSource,
    ) -> None:
        self.index = 0
        self._run, self._source, self._recorded = run, source, recorded
        self._graph, self._no_graph = source.graph, source.no_graph
        self._model, self._given_model, self._given_optimizer = inner_model(model), model, optimizer
        self._description = dict(description)
        self._first: FirstStep | None = None
        self._guard: GraphGuard | None = None
        self._watch: StepWatch | None = None
        self._recorder: RunRecorder | None = None
        self._is_over = self._said_over = False
        self._is_first = True
        with sheltered(self.stop):
            self._begin()

    def step(
        self,
        loss: float | torch.Tensor,
        batch: Any = None,
        gradient_norm: float | torch.Tensor | None = None,
        learning_rates: Sequence[float] | None = None,
    ) -> None:
        """Record the optimizer step that was just taken.

        Args:
            loss: the step's loss in the loop's own units: the number that `backward()` was called on.
            batch: the tensors the step consumed (recorded by digest), or the positions of its examples; a list of
                micro-batches where the step has several. Without it no step can be replayed.
            gradient_norm: the norm of the gradient before clipping, if the loop computed it.
            learning_rates: one for each parameter group; by default those of the optimizer at its step.
        """
        if self._is_over:
            self._say_over()
            return
        with sheltered(self.stop):
            self._step(loss, batch, gradient_norm, learning_rates)

    def finish(self) -> None:
        """Save the last state and write the claim."""
        if self._is_over:
            return
        with sheltered(self.stop):
            if self.index == 0:
                raise UsageError("no step was recorded: call `recorder.step(loss, batch)` after each optimizer step")
            self._finish()

    def fail(self, error: BaseException) -> None:
        """Record that the loop crashed, and close the run without a claim."""
        if not self._is_over:
            self._close()
            with sheltered(unsaid):  # only the error of the loop is shown
                if self._recorder is None:
                    self._start(self._before)
                assert self._recorder is not None
                self._recorder.fail(self.index + 1, error)

    def stop(self, reason: str) -> None:
        """Stop recording and warn with the reason; the run ends at its last anchor."""
        if self._is_over:
            return
        self._close()
        kept, troubles = 0, list[str]()
        with sheltered(troubles.append):
            kept = self._recorder.finish_at_anchor(self._reason) if self._recorder is not None else 0
        left = (
            f"the run ends at its anchor of step {kept}" if kept else "no step stands before an anchor: no run is left"
        )
        if troubles:
            left = f"the run has no claim ({troubles[0]})"
        self._said_over = True
        say(f"recording ended at step {self.index}, and the loop goes on: {reason}; {left}")

    @property
    def _reason(self) -> str | None:
        """Why no step of the run can be replayed; `None` where they can."""
        return self._no_graph if self._guard is None else self._guard.reason

    def _begin(self) -> None:
        require_whole(self._model)
        self._optimizer = inner_optimizer(self._given_optimizer)
        self._device = "cuda" if next(self._model.parameters()).is_cuda else "cpu"
        self._weights = dict(self._model.named_parameters())
        if self._source.watches:
            self._before = {name: tensor.copy() for name, tensor in self._state().items()}
            self._watch = StepWatch(self._model, self._optimizer, None, lambda: True)
            self._watch.keeps_gradients = True
            self._first = FirstStep(self._model, self._optimizer)
            self._first.start()
        else:
            self._start(None)
            self._prepare_check()
        self._last_step = time.perf_counter()

    def _start(self, before: State | None) -> None:
        """Write spec, header and the anchor of the state `before` the first step: that of the live model for `None`."""
        graph, recorded = self._graph, self._recorded
        spec = Spec(
            description={"model": type(self._model).__name__} | self._description,
            record=recorded,
            graph=None if graph is None else graph.root,
            optimizer=None if graph is None else graph.rules,
        )
        if graph is not None:
            graph.save(self._run)
            self._guard = GraphGuard(graph, self._given_model, self._device, recorded, self._state, self._run)
        environment = describe_environment("cuda" if self._device == "cuda" else "cpu")
        live = self._summariser(spec, {f"weights.{name}": value for name, value in self._weights.items()})
        self._recorder = RunRecorder(self._run, spec, environment, live, self._state)
        if before is None:
            self._recorder.begin()
        else:
            held = {name: from_tensor(value) for name, value in before.items() if name.startswith("weights.")}
            kept = {name: value.to(self._device) for name, value in held.items()}
            self._recorder.begin(before, self._summariser(spec, kept).at_anchor())
        if self._watch is not None:
            self._watch.close()
        self._watch = StepWatch(self._model, self._optimizer, graph, self._recorder.holds_weights)

    def _summariser(self, spec: Spec, weights: Mapping[str, torch.Tensor]) -> Summariser:
        return Summariser(self._recorded, projection_seed(spec), weights, self._state, self._run.write_blob)

    def _step(
        self,
        loss: float | torch.Tensor,
        batch: Any,
        gradient_norm: float | torch.Tensor | None,
        learning_rates: Sequence[float] | None,
    ) -> None:
        assert self._watch is not None
        self.index += 1
        now, seen = time.perf_counter(), self._watch.take()
        if self._first is not None and self._is_first:
            self._start_after(self._first, seen, batch)
        assert self._recorder is not None
        rates = tuple(learning_rates or (rate or 0.0 for rate in seen.rates))
        value, norm = number(loss), None if gradient_norm is None else number(gradient_norm)
        self._recorder.step(
            self.index,
            self._examined(seen, batch, rates, value, norm),
            loss=value,
            learning_rate=rates[0],
            learning_rates=rates if len(set(rates)) > 1 else None,
            gradient_norm=norm,
            seconds=now - self._last_step,
            tags=(NO_RATE,) if None in seen.rates and not learning_rates else (),
        )
        self._prepare_check()
        self._last_step = time.perf_counter()

    def _start_after(self, first: FirstStep, seen: Stepped, batch: Any) -> None:
        """Make the graph of the first step, which was just taken, and start the run from the state before it."""
        first.stop()
        self._is_first, before, reasons = False, self._before, list[str]()
        if seen.count == 1:
            with sheltered(reasons.append):
                self._graph = first.graph(batch)
        else:
            reasons.append(STEPS_BETWEEN.format(self.index, seen.count))
        if self._graph is None:
            self._no_graph = without_graph(self._source.blockers, reasons[0]).no_graph
        else:
            drawn = (name for name in before if not name.startswith("rng."))
            before = self._graph.empty_slots() | {name: before[name] for name in drawn}
        self._start(before)
        self._before = {}
        if self._guard is not None:
            self._guard.keep(before)

    def _finish(self) -> None:
        assert self._recorder is not None
        assert self._watch is not None
        if self.index % self._recorded.anchor_stride:
            if "projection" in self._recorded.summaries and not self._recorder.holds_weights():
                raise UsageError(CHANGED_AT_END)
            if self._guard is not None and self._guard.reason is None and (written := self._watch.written_at_end()):
                self._guard.withdraw(written)
            self._recorder.anchor(self.index)
        if self._guard is not None and self._guard.reason is None:
            self._guard.finish()
        self._recorder.finish(self._reason)
        self._close()

    def _examined(self, seen: Stepped, batch: Any, rates: tuple[float, ...], loss: float, norm: float | None) -> Batch:
        """The batch for the record, after a check that the step was the captured one."""
        if self._graph is None or self._guard is None or self._reason is not None:
            return describe_batch(batch)
        named = self._graph.named(batch)
        self._guard.examine(Observed(self.index, seen, named, batch, rates, loss, norm))
        if self._guard.reason is not None:
            return describe_batch(batch)
        kept = Batch(digest=keep_batch(self._run, named))
        self._guard.add(RecordedStep(self.index, kept, rates, loss))
        return kept

    def _prepare_check(self) -> None:
        """Keep the state if the next step is one to check."""
        assert self._watch is not None
        self._watch.keeps_gradients = self._guard is not None and self._guard.is_due(self.index + 1)
        if self._guard is not None and self._watch.keeps_gradients:
            self._guard.keep(self._state())

    def _close(self) -> None:
        self._is_over = True
        if self._first is not None:
            self._first.stop()
        if self._guard is not None:
            self._guard.close()
        if self._watch is not None:
            self._watch.close()

    def _say_over(self) -> None:
        if not self._said_over:
            self._said_over = True
            say("the run is closed: this step and those after it are not recorded; a second run takes a new recorder")

    def _state(self) -> State:
        live = live_tensors(self._model, self._optimizer)
        if any(live.get(f"weights.{name}") is not value for name, value in self._weights.items()):
            raise UnavailableError("parameters of the model were exchanged for others")
        state = {name: to_tensor(value) for name, value in live.items()}
        state["position.step"] = Tensor.of(np.asarray(self.index, np.int64))
        if self._graph is None:
            return state | generator_state(self._device, foreign=True)
        return state | {name: empty for name, empty in self._graph.empty_slots().items() if name not in state}


def number(value: float | torch.Tensor) -> float:
    """A number of the loop as a float; a tensor is detached and read."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)
