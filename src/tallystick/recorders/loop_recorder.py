"""Records the steps of a custom training loop, and raises nothing into it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tallystick.errors import UnavailableError, UsageError
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.state import generator_state, live_tensors
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.frameworks.torch.training.summaries import Summariser
from tallystick.frameworks.torch.wrappers import inner_model, inner_optimizer, require_whole
from tallystick.recorders.batches import describe_batch
from tallystick.recorders.boundary import say, sheltered, unsaid
from tallystick.recorders.likely_cause import GraphMismatch
from tallystick.recorders.run_recorder import RunRecorder
from tallystick.recorders.self_check import SelfCheck, TakenStep
from tallystick.recorders.step_graph import StepGraph, keep_batch
from tallystick.recorders.step_watch import Stepped, StepWatch
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.recipe import RecordRecipe
from tallystick.transcripts.record import Batch
from tallystick.transcripts.spec import Spec
from tallystick.workloads.plan import projection_seed

NO_RATE = "no-rate"
"""The tag of a step whose optimizer states no learning rate; its record has rate 0."""
LINE_MAX = 1024
STEPS_BETWEEN = (
    "step {}: the optimizer stepped {} times since the last record, and has to once; with micro-batches, "
    "give `accumulation=` and record after `optimizer.step()`"
)

TOUCHED = (
    "step {}: gradients are changed between backward() and optimizer.step(), and the captured step changes none; "
    "clipping takes `clip_norm=`, and scaling belongs into `loss=`"
)
CHANGED_AT_END = "the weights were changed after the last record; do that after the recording, or record the last step"


class OwnLoopRecorder:
    """Records the steps of a custom training loop, and raises nothing into it.

    With a step `graph`, the state holds exactly what the graph carries from step to step, and every batch is kept. At
    some steps the graph is compared with the loop, and withdrawn if it does not reproduce the step. If recording fails,
    one `RuntimeWarning` is issued. The run then ends at its last anchor, and the loop goes on.
    """

    def __init__(
        self,
        run: RunDirectory,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        recorded: RecordRecipe,
        description: Mapping[str, str],
        graph: StepGraph | None = None,
    ) -> None:
        self.index = 0
        self._run, self._graph, self._recorded = run, graph, recorded
        self._model, self._given_model, self._given_optimizer = inner_model(model), model, optimizer
        self._description = dict(description)
        self._no_graph: str | None = None
        self._check: SelfCheck | None = None
        self._watch: StepWatch | None = None
        self._recorder: RunRecorder | None = None
        self._is_over = self._said_over = self._said_misfit = False
        with sheltered(self.stop):
            self._begin()

    def step(
        self,
        loss: float | torch.Tensor,
        batch: Any,
        gradient_norm: float | torch.Tensor | None = None,
        learning_rates: Sequence[float] | None = None,
    ) -> None:
        """Record the optimizer step that was just taken.

        Args:
            loss: the step's loss in the loop's own units.
            batch: the tensors the step consumed (recorded by digest), or the positions of its examples; a list of
                micro-batches where the step was captured with several.
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
                assert self._recorder is not None
                self._recorder.fail(self.index + 1, error)

    def stop(self, reason: str) -> None:
        """Stop recording and warn with the reason; the run ends at its last anchor."""
        if self._is_over:
            return
        self._close()
        kept, troubles = 0, list[str]()
        with sheltered(troubles.append):
            kept = self._recorder.finish_at_anchor(self._no_graph) if self._recorder is not None else 0
        left = (
            f"the run ends at its anchor of step {kept}" if kept else "no step stands before an anchor: no run is left"
        )
        if troubles:
            left = f"the run has no claim ({troubles[0]})"
        self._said_over = True
        say(f"recording ended at step {self.index}, and the loop goes on: {reason}; {left}")

    def _begin(self) -> None:
        require_whole(self._model)
        self._optimizer = inner_optimizer(self._given_optimizer)
        self._device = "cuda" if next(self._model.parameters()).is_cuda else "cpu"
        graph, recorded = self._graph, self._recorded
        spec = Spec(
            description={"model": type(self._model).__name__} | self._description,
            record=recorded,
            graph=None if graph is None else graph.root,
            optimizer=None if graph is None else graph.rules,
        )
        if graph is not None:
            graph.save(self._run)
            self._check = SelfCheck(graph, self._device, recorded.loss_decimals)
        self._weights = dict(self._model.named_parameters())
        weights = {f"weights.{name}": value for name, value in self._weights.items()}
        summariser = Summariser(recorded, projection_seed(spec), weights, self._state, self._run.write_blob)
        environment = describe_environment("cuda" if self._device == "cuda" else "cpu")
        self._recorder = RunRecorder(self._run, spec, environment, summariser, self._state)
        self._recorder.begin()
        self._watch = StepWatch(self._model, self._optimizer, graph, self._recorder.holds_weights)
        self._prepare_check()
        self._last_step = time.perf_counter()

    def _step(
        self,
        loss: float | torch.Tensor,
        batch: Any,
        gradient_norm: float | torch.Tensor | None,
        learning_rates: Sequence[float] | None,
    ) -> None:
        assert self._recorder is not None
        assert self._watch is not None
        self.index += 1
        now, seen = time.perf_counter(), self._watch.take()
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

    def _finish(self) -> None:
        assert self._recorder is not None
        assert self._watch is not None
        if self.index % self._recorded.anchor_stride:
            if "projection" in self._recorded.summaries and not self._recorder.holds_weights():
                raise UsageError(CHANGED_AT_END)
            if self._no_graph is None and (written := self._watch.written_at_end()):
                self._withdraw(written)
            self._recorder.anchor(self.index)
        self._recorder.finish(self._no_graph)
        self._close()

    def _examined(self, seen: Stepped, batch: Any, rates: tuple[float, ...], loss: float, norm: float | None) -> Batch:
        """The batch for the record, after a check that the step was the captured one."""
        if self._graph is None or self._no_graph is not None:
            return describe_batch(batch)
        named = self._graph.named(batch)
        departure = seen.change or ("" if seen.count == 1 else STEPS_BETWEEN.format(self.index, seen.count))
        if departure:
            self._withdraw(departure)
        elif misfit := self._graph.misfit(named):
            self._say_misfit(misfit)
        elif other := self._graph.other_number(batch):
            self._withdraw(f"step {self.index}: {other}")
        elif not math.isfinite(loss):
            raise UnavailableError(f"the loss of step {self.index} is {loss}, and no replay is compared with that")
        elif self._check is not None and self._check.before is not None:
            before, gradients = self._check.before, seen.gradients or {}
            taken = TakenStep(self.index, before, self._state(), named, batch, rates, loss, norm, gradients)
            self._compare(self._check, taken)
        if seen.is_touched and self._no_graph is None:  # after the comparison, which finds a more exact reason
            self._withdraw(TOUCHED.format(self.index))
        return describe_batch(batch) if self._no_graph is not None else Batch(digest=keep_batch(self._run, named))

    def _compare(self, check: SelfCheck, step: TakenStep) -> None:
        """Replay the step that was just taken; withdraw the graph if the result differs."""
        assert self._graph is not None
        with sheltered(self._withdraw):
            replayed = check.replay(step)
            if where := check.difference(step, replayed):
                doubt = GraphMismatch(
                    self._graph, self._device, step, where, self._recorded.loss_decimals, self._given_model
                )
                self._withdraw(doubt.cause(check, replayed))
            check.done()

    def _prepare_check(self) -> None:
        """Keep the state if the next step is one to check."""
        assert self._watch is not None
        is_due = self._check is not None and self._check.is_due(self.index + 1)
        self._watch.keeps_gradients = is_due
        if self._check is not None and is_due:
            self._check.keep(self._state())

    def _withdraw(self, reason: str) -> None:
        self._check, self._no_graph = None, printed(reason)
        say(f"the run cannot be replayed: {self._no_graph}")

    def _close(self) -> None:
        self._is_over, self._check = True, None
        if self._watch is not None:
            self._watch.close()

    def _say_over(self) -> None:
        if not self._said_over:
            self._said_over = True
            say("the run is closed: this step and those after it are not recorded; a second run takes a new recorder")

    def _say_misfit(self, misfit: str) -> None:
        if not self._said_misfit:
            self._said_misfit = True
            say(f"step {self.index} cannot be replayed, nor any other of its kind (drop_last=True): {misfit}")

    def _state(self) -> State:
        live = live_tensors(self._model, self._optimizer)
        if any(live.get(f"weights.{name}") is not value for name, value in self._weights.items()):
            raise UnavailableError("parameters of the model were exchanged for others")
        state = {name: to_tensor(value) for name, value in live.items()}
        state["position.step"] = Tensor.of(np.asarray(self.index, np.int64))
        if self._graph is None:
            return state | generator_state(self._device, foreign=True)
        return state | {name: empty for name, empty in self._graph.empty_slots().items() if name not in state}


def printed(line: str) -> str:
    """A text as one line of printable characters, cut to the length that a claim allows."""
    return "".join(character if character.isprintable() else " " for character in line)[:LINE_MAX]


def number(value: float | torch.Tensor) -> float:
    """A number of the loop as a float; a tensor is detached and read."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)
