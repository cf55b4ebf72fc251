"""Records the steps of a custom training loop, and raises nothing into it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.tensors import State, Tensor
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.randomness import native_mask
from tallystick.engines.torch.tensors import from_tensor, generator_state, live_tensors, to_tensor
from tallystick.engines.torch.training.trainer import Summariser
from tallystick.engines.torch.wrappers import inner_model, inner_optimizer, require_whole
from tallystick.formats.data.step_program import projection_seed
from tallystick.formats.recipe import RecordRecipe
from tallystick.formats.records import Batch
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.attachments import NOTHING, Attachments, stated_digest
from tallystick.recording.boundary import contain_errors, ignore, warn
from tallystick.recording.loop.draws import Draws, draws_natively
from tallystick.recording.loop.graph_guard import STEPS_BETWEEN, GraphGuard
from tallystick.recording.loop.program_watch import ProgramWatch
from tallystick.recording.loop.self_check import SelfCheck, trim_heap
from tallystick.recording.loop.step_graph import (
    StepGraph,
    count_of,
    describe_batch,
    keep_batch,
    named_tensors,
    parts_of,
    the_only_one,
)
from tallystick.recording.loop.step_graphs import GraphSource, StepGraphs, without_graph
from tallystick.recording.loop.watchers import (
    DepartureWatch,
    NewBatchWatch,
    OptimizerWatch,
    StepSeen,
    Watcher,
    rates_of,
)
from tallystick.recording.run_recorder import RunRecorder

NO_RATE: Final = "no-rate"
"""The tag of a step whose optimizer states no learning rate; its record has rate 0."""
SHARE: Final = 0.05
"""How much of a loop's time goes into replays of what was recorded, after the first seconds."""
CHANGED_AT_END: Final = (
    "the weights were changed after the last record; do that after the recording, or record the last step"
)

CLOSED: Final = "the run is closed: this step and those after it are not recorded; a second run takes a new recorder"


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
        optimizer: Any,
        recorded: RecordRecipe,
        description: Mapping[str, str],
        source: GraphSource,
        attached: Attachments = NOTHING,
        share: float = SHARE,
    ) -> None:
        self.index = 0
        self._run, self._recorded, self._source, self._attached = run, recorded, source, attached
        self._model, self._given_optimizer = inner_model(model), optimizer
        self._description = {"model": type(self._model).__name__} | dict(description)
        self._graph, self._before = source.graph, dict[str, Tensor]()
        self._guard = GraphGuard(model, self._state, share, source.no_graph)
        self._recorder: RunRecorder | None = None
        self._watchers: list[Watcher] = []
        self._draws: Draws | None = None
        self._new_batches: NewBatchWatch | None = None
        self._watch_again: ProgramWatch | None = None
        self._contained = partial(contain_errors, self.stop)
        self._is_over = self._said_over = False
        with self._contained():
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
            learning_rates: one for each parameter group, if the optimizer states none; others are read at its step.
        """
        if self._is_over:
            if not self._said_over:
                self._said_over = True
                warn(CLOSED)
            return
        with self._contained(), self._modes():
            self.index += 1
            seconds = time.perf_counter() - self._last_step
            norm = None if gradient_norm is None else number(gradient_norm)
            rates = tuple(learning_rates or ())
            self._record(StepSeen(self.index, number(loss), norm, (the_only_one(batch),), rates=rates), seconds)

    def finish(self) -> None:
        """Save the last state and write the claim."""
        if self._is_over:
            return
        with self._contained(), self._modes():
            if self.index == 0:
                raise UsageError("no step was recorded: call `recorder.step(loss, batch)` after each optimizer step")
            assert self._recorder is not None
            if self.index % self._recorded.anchor_stride:
                if "projection" in self._recorded.summaries and not self._recorder.holds_weights():
                    raise UsageError(CHANGED_AT_END)
                self._guard.check_end(self.index)
                self._recorder.anchor(self.index)
                self._guard.end_segment(is_last=True)
            self._guard.finish()
            self._recorder.finish(self._guard.reason, self._guard.withdrawn)
            self._close()

    def fail(self, error: BaseException) -> None:
        """Record that the loop crashed, and close the run without a claim."""
        if not self._is_over:
            self._close()
            with contain_errors(ignore):  # only the error of the loop is shown
                recorder = self._start(self._before) if self._recorder is None else self._recorder
                recorder.fail(self.index + 1, error)

    def stop(self, reason: str) -> None:
        """Stop recording and warn with the reason; the run ends at its last anchor."""
        if self._is_over:
            return
        with contain_errors(ignore):
            self._guard.finish()
        self._close()
        kept, troubles = 0, list[str]()
        with contain_errors(troubles.append):
            if self._recorder is not None:
                kept = self._recorder.finish_at_anchor(self._guard.reason, self._guard.withdrawn)
        left = (
            f"the run ends at its anchor of step {kept}" if kept else "no step stands before an anchor: no run is left"
        )
        if troubles:
            left = f"the run has no claim ({troubles[0]})"
        self._said_over = True
        warn(f"recording ended at step {self.index}, and the loop goes on: {reason}; {left}")

    def enter_forward(self, given: Mapping[str, Any]) -> None:
        """Tell a recorder that was made inside a hook of the model that it begins to run with what is `given`."""
        with self._contained():
            if self._draws is not None:
                self._draws.enter()
            if self._new_batches is not None:
                self._new_batches.enter((), given)

    @contextmanager
    def _modes(self) -> Iterator[None]:
        """The modes in which a step is captured and replayed, whatever block of the loop calls the recorder."""
        with torch.enable_grad(), torch.autocast(self._device, enabled=False):
            yield

    def _begin(self) -> None:
        require_whole(self._model)
        self._optimizer, source = inner_optimizer(self._given_optimizer), self._source
        self._device: Literal["cpu", "cuda"] = "cuda" if next(self._model.parameters()).is_cuda else "cpu"
        self._weights = dict(self._model.named_parameters())
        if source.no_graph is None:
            self._new_batches = NewBatchWatch(self._model, self._keep_before_new, self._contained)
        self._watchers.append(OptimizerWatch(self._model, self._optimizer))
        program = None
        if self._graph is None and source.no_graph is None:
            self._before = {name: tensor.copy() for name, tensor in self._state().items()}
            program = ProgramWatch(self._model, self._optimizer, source.seed, source.given, self._attached.ema)
            program.start()
            self._watchers.append(program)
        self._program = program
        seed = source.seed if self._graph is None else self._graph.loop.seed
        may_draw = program is not None or (self._graph is not None and draws_natively(self._graph.captured.graph))
        if seed is not None or (self._device == "cpu" and may_draw and native_mask() is not None):
            self._draws = Draws(self._model, seed, self._contained)
            self._watchers.append(self._draws)
            self._draws.start(None if program is None else program.log)
            self._draws.begin(1)
        if self._new_batches is not None:
            self._watchers.append(self._new_batches)
        if program is None:
            self._start(None)
            self._expect_next()
        self._last_step = time.perf_counter()

    def _start(self, before: State | None) -> RunRecorder:
        """Write spec, header and the anchor of the state `before` the first step: that of the live model for `None`."""
        graph, recorded, attached = self._graph, self._recorded, self._attached
        spec = Spec(
            description=self._description,
            record=recorded,
            graph=None if graph is None else graph.root,
            optimizer=None if graph is None else graph.rules,
            seed=None if graph is None else graph.loop.seed,
            initial=None if attached.origin is None else stated_digest(attached.origin, before or self._state()),
            rows=None if attached.rows is None else attached.rows.keep(self._run),
            average=None if graph is None or attached.ema is None else attached.ema.rule,
        )
        if graph is not None:
            graph.save(self._run.graph_path)

        def summariser(weights: Mapping[str, torch.Tensor]) -> Summariser:
            return Summariser(recorded, projection_seed(spec), weights, self._state, self._run.write_blob)

        live = summariser({f"weights.{name}": value for name, value in self._weights.items()})
        environment = describe_environment(self._device)
        recorder = self._recorder = RunRecorder(self._run, spec, environment, live, self._state, attached.keeping)
        if before is None:
            recorder.begin()
        else:
            weights = {name: value for name, value in before.items() if name.startswith("weights.")}
            on_device = {name: from_tensor(value).to(self._device) for name, value in weights.items()}
            recorder.begin(before, summariser(on_device).at_anchor())
        if graph is not None:
            watch = DepartureWatch(graph, recorder)
            self._watchers.insert(1, watch)
            self._guard.begin(StepGraphs(graph, self._run, self._watch_again), recorder, watch, self._device)
        elif self._new_batches is not None:
            self._new_batches.close()
        return recorder

    def _record(self, step: StepSeen, seconds: float) -> None:
        """Record a step that is over: what was passed, what the watchers saw of it, and its graph."""
        has_no_rate = not step.rates and None in rates_of(self._optimizer)
        for watcher in self._watchers:
            step = watcher.end(step)
        recorder = self._start_after(step) if self._recorder is None else self._recorder
        if self._graph is not None and self._guard.reason is None:
            step = self._as_read_by(self._graph, step)
        graph = self._guard.examine(step)
        if graph is None:
            batch = describe_batch(step.batch)
        else:
            rows = self._attached.rows
            positions = None if rows is None else rows.positions(step.named)
            batch = Batch(digest=keep_batch(self._run, step.named), indices=positions)
        stated: dict[str, Any] = {"no_graph": graph}
        if isinstance(graph, StepGraph):  # the spec names the first graph, and its rules
            assert self._graph is not None
            rules = None if graph.rules == self._graph.rules else graph.rules
            stated = {"graph": None if graph.root == self._graph.root else graph.root, "optimizer": rules}
        else:  # the weights may have been changed since the optimizer stepped
            recorder.forget_noted()
        record = recorder.step(
            step.index,
            batch,
            loss=step.loss,
            learning_rate=step.rates[0],
            learning_rates=step.rates if len(set(step.rates)) > 1 else None,
            gradient_norm=step.gradient_norm,
            seconds=seconds,
            tags=(NO_RATE,) if has_no_rate else (),
            **stated,
        )
        self._guard.add(record, graph)
        self._expect_next()
        self._last_step = time.perf_counter()

    def _expect_next(self) -> None:
        """Prepare for the next step, and keep the state before it if it is one to check."""
        for watcher in self._watchers:
            watcher.begin(self.index + 1)
        if self._guard.is_due(self.index + 1):
            self._guard.keep(self._state())

    def _keep_before_new(self) -> None:
        """Keep the state before the step that begins, whose batch is the first of its kind; watch it if need be."""
        if self._recorder is None or self.index == 0:
            return
        if self._guard.wants_state:
            self._guard.keep(self._state())
        if self._watch_again is not None:
            self._watch_again.start()

    def _start_after(self, step: StepSeen) -> RunRecorder:
        """Make the graph of the first step, which was just taken, and start the run from the state before it."""
        assert self._program is not None
        before: State = self._before
        reasons = list[str]()
        if step.optimizer_steps == 1:
            with contain_errors(reasons.append):
                self._graph = self._program.graph(step.batch, partial(self._gives, step))
        else:
            reasons.append(STEPS_BETWEEN.format(step.index, step.optimizer_steps))
        graph, draws = self._graph, self._draws
        if draws is not None:
            draws.answer_by(None)
            if graph is None or not (graph.loop.seed is not None or draws_natively(graph.captured.graph)):
                draws.close()
                self._watchers.remove(draws)
                self._draws = None
        if graph is None:
            self._guard.reason = without_graph(self._source.blockers, reasons[0]).no_graph
        else:
            before = self._before_as(graph)
            # where numbers are drawn from a seed, the model has begun to draw before a later watch begins
            if graph.loop.fixed is not None and self._draws is None:
                self._watch_again = self._program
        trim_heap()  # what the capture took
        self._watchers[0].close()
        self._watchers[0] = OptimizerWatch(self._model, self._optimizer)  # after hooks that the first step has added
        recorder = self._start(before)
        self._before = {}
        self._guard.keep(before)
        trim_heap()
        return recorder

    def _before_as(self, graph: StepGraph) -> State:
        """The state before the first step as a graph carries it."""
        named = {name: value for name, value in self._before.items() if not name.startswith("rng.")}
        drawn = {} if self._draws is None else self._draws.state_of(graph.captured.graph, before=True)
        return graph.empty_slots() | named | drawn

    def _gives(self, step: StepSeen, graph: StepGraph) -> bool:
        """Whether a graph gives the first step, which was just taken."""
        before, live = self._before_as(graph), self._state()
        after = graph.empty_slots() | {name: value for name, value in live.items() if not name.startswith("rng.")}
        after |= {} if self._draws is None else self._draws.state_of(graph.captured.graph)
        step = self._as_read_by(graph, step)
        if graph.misfit(step.named):  # the example that was given has other shapes
            return True
        check = SelfCheck(self._device, self._recorded.loss_decimals, self._recorded.anchor_stride)
        return not check.difference(step, before, after, check.replay(graph, step, before))

    def _as_read_by(self, graph: StepGraph, step: StepSeen) -> StepSeen:
        """The step with its micro-batches and their tensors by name, in a loop whose first step has this graph."""
        parts = parts_of(step.batch, count_of(step.batch, graph))
        moves = {} if self._draws is None else self._draws.moves(graph.captured.graph)
        return replace(step, parts=parts, named=named_tensors(parts) | moves)

    def _close(self) -> None:
        self._is_over = True
        for watcher in self._watchers:
            watcher.close()
        self._guard.close()

    def _state(self) -> State:
        live = live_tensors(self._model, self._optimizer)
        if any(live.get(f"weights.{name}") is not value for name, value in self._weights.items()):
            raise UnavailableError("parameters of the model were exchanged for others")
        live |= {} if self._attached.ema is None else self._attached.ema.live(self._model)
        state = {name: to_tensor(value) for name, value in live.items()}
        state["position.step"] = Tensor.of(np.asarray(self.index, np.int64))
        if self._graph is None:
            return state | generator_state(self._device, foreign=True)
        state |= {name: empty for name, empty in self._graph.empty_slots().items() if name not in state}
        return state | ({} if self._draws is None else self._draws.state_of(self._graph.captured.graph))


def number(value: float | torch.Tensor) -> float:
    """A number of the loop as a float; a tensor is detached and read."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)
