"""Records the steps of a custom training loop, and raises nothing into it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tallystick.errors import UnavailableError, UsageError
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.generator_operators import native_mask
from tallystick.frameworks.torch.state import generator_state, live_tensors
from tallystick.frameworks.torch.tensors import from_tensor, to_tensor
from tallystick.frameworks.torch.training.sketch import Sketcher
from tallystick.frameworks.torch.training.summaries import Summariser
from tallystick.frameworks.torch.wrappers import inner_model, inner_optimizer, require_whole
from tallystick.recorders.attachments import NOTHING, Attachments
from tallystick.recorders.batches import describe_batch
from tallystick.recorders.boundary import say, sheltered, unsaid
from tallystick.recorders.draws import Draws, NativeDraws, SeededDraws, draws_natively, generator_of, moves_of
from tallystick.recorders.first_step import FirstStep
from tallystick.recorders.first_weights import stated_digest
from tallystick.recorders.freed_memory import give_back
from tallystick.recorders.graph_guard import STEPS_BETWEEN, GraphGuard, Observed
from tallystick.recorders.graph_source import GraphSource, without_graph
from tallystick.recorders.new_batches import NewBatches
from tallystick.recorders.run_recorder import RunRecorder
from tallystick.recorders.self_audit import RecordedStep, Sketch
from tallystick.recorders.self_check import SelfCheck, TakenStep
from tallystick.recorders.step_graph import StepGraph, count_of, keep_batch, named_tensors, the_only_one
from tallystick.recorders.step_watch import Stepped, StepWatch
from tallystick.recorders.watched_again import WatchedAgain
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import State, Tensor
from tallystick.tolerances.projection import Projection
from tallystick.transcripts.claim import Withdrawn
from tallystick.transcripts.recipe import RecordRecipe
from tallystick.transcripts.record import Batch
from tallystick.transcripts.spec import Spec
from tallystick.workloads.plan import projection_seed

NO_RATE = "no-rate"
"""The tag of a step whose optimizer states no learning rate; its record has rate 0."""
SHARE = 0.05
"""How much of a loop's time goes into replays of what was recorded, after the first seconds."""
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
        optimizer: Any,
        recorded: RecordRecipe,
        description: Mapping[str, str],
        source: GraphSource,
        attached: Attachments = NOTHING,
        share: float = SHARE,
    ) -> None:
        self.index, self._share = 0, share
        self._run, self._source, self._recorded = run, source, recorded
        self._graph, self._no_graph = source.graph, source.no_graph
        self._model, self._given_model, self._given_optimizer = inner_model(model), model, optimizer
        self._description, self._attached = dict(description), attached
        self._origin, self._rows = attached.origin, attached.rows
        self._first: FirstStep | None = None
        self._guard: GraphGuard | None = None
        self._watch: StepWatch | None = None
        self._draws: Draws | None = None
        self._new_batches: NewBatches | None = None
        self._again: WatchedAgain | None = None
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
            learning_rates: one for each parameter group, if the optimizer states none; others are read at its step.
        """
        if self._is_over:
            self._say_over()
            return
        with sheltered(self.stop), self._modes():
            self._step(loss, the_only_one(batch), gradient_norm, learning_rates)

    def finish(self) -> None:
        """Save the last state and write the claim."""
        if self._is_over:
            return
        with sheltered(self.stop), self._modes():
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
        if self._guard is not None and self._guard.reason is None:
            with sheltered(unsaid):
                self._guard.finish()
        self._close()
        kept, troubles = 0, list[str]()
        with sheltered(troubles.append):
            kept = self._recorder.finish_at_anchor(self._reason, self._withdrawn) if self._recorder is not None else 0
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

    @property
    def _withdrawn(self) -> Sequence[Withdrawn]:
        """The steps whose graph is in doubt."""
        return () if self._guard is None else self._guard.withdrawn

    @contextmanager
    def _modes(self) -> Iterator[None]:
        """The modes in which a step is captured and replayed, whatever block of the loop calls the recorder."""
        with torch.enable_grad(), torch.autocast(self._device, enabled=False):
            yield

    def _begin(self) -> None:
        require_whole(self._model)
        self._optimizer = inner_optimizer(self._given_optimizer)
        if self._source.watches or self._graph is not None:
            self._new_batches = NewBatches(self._model, self._prepare_new, lambda: sheltered(self.stop))
        self._device = "cuda" if next(self._model.parameters()).is_cuda else "cpu"
        self._weights = dict(self._model.named_parameters())
        if self._source.watches:
            self._before = {name: tensor.copy() for name, tensor in self._state().items()}
            self._watch = StepWatch(self._model, self._optimizer, None, None)
            self._watch.keeps_gradients = True
            given, ema = self._source.given, self._attached.ema
            self._first = FirstStep(self._model, self._optimizer, self._source.seed, given, ema)
            self._first.start()
            self._draw(self._source.seed)
        else:
            self._draw(None if self._graph is None else self._graph.seed)
            self._start(None)
            self._prepare_check()
        self._last_step = time.perf_counter()

    def _draw(self, seed: int | None) -> None:
        """Let the model draw its random numbers from a seed, or follow the generator that it draws from."""
        may_draw = self._first is not None or (self._graph is not None and draws_natively(self._graph.captured.graph))
        if seed is not None:
            self._draws = SeededDraws(self._model, seed, lambda: sheltered(self.stop))
        elif self._device == "cpu" and may_draw and native_mask() is not None:
            self._draws = NativeDraws(self._model, lambda: sheltered(self.stop))
        if self._draws is not None:
            self._draws.start(None if self._first is None else self._first.log)

    def enter_forward(self, given: Mapping[str, Any]) -> None:
        """Tell a recorder that was made inside a hook of the model that it begins to run with what is `given`."""
        with sheltered(self.stop):
            if self._draws is not None:
                self._draws.enter(self._model)
            if self._new_batches is not None:
                self._new_batches.enters((), given)

    def _start(self, before: State | None) -> None:
        """Write spec, header and the anchor of the state `before` the first step: that of the live model for `None`."""
        graph, recorded = self._graph, self._recorded
        spec = Spec(
            description={"model": type(self._model).__name__} | self._description,
            record=recorded,
            graph=None if graph is None else graph.root,
            optimizer=None if graph is None else graph.rules,
            seed=None if graph is None else graph.seed,
            initial=None if self._origin is None else stated_digest(self._origin, before or self._state()),
            rows=None if self._rows is None else self._rows.keep(self._run),
            average=None if graph is None or self._attached.ema is None else self._attached.ema.rule,
        )
        if graph is not None:
            graph.save(self._run.graph_path)
            sketch = sketch_with(recorded, projection_seed(spec))
            self._guard = GraphGuard(
                graph, self._given_model, self._device, recorded, self._state, self._run, sketch, self._share
            )
        environment = describe_environment("cuda" if self._device == "cuda" else "cpu")
        live = self._summariser(spec, {f"weights.{name}": value for name, value in self._weights.items()})
        self._recorder = RunRecorder(self._run, spec, environment, live, self._state, self._attached.keeping)
        if before is None:
            self._recorder.begin()
        else:
            held = {name: from_tensor(value) for name, value in before.items() if name.startswith("weights.")}
            kept = {name: value.to(self._device) for name, value in held.items()}
            self._recorder.begin(before, self._summariser(spec, kept).at_anchor())
        if self._watch is not None:
            self._watch.close()
        self._watch = StepWatch(self._model, self._optimizer, graph, self._recorder)
        if graph is None and self._new_batches is not None:
            self._new_batches.close()

    def _prepare_new(self) -> None:
        """Keep the state before the step that begins, whose batch is the first of its kind; watch it if need be."""
        if self._watch is None or self._guard is None or self.index == 0:
            return
        if not self._guard.keeps and not self._watch.written_at_end():
            self._guard.keep(self._state())
            self._watch.keeps_gradients = True
        if self._again is not None:
            self._again.start()

    def _watching_again(self, graph: StepGraph) -> StepGraph:
        """A graph of a step that was watched, which watches later steps, too.

        Not where numbers are drawn from a seed: the model has begun to draw before such a watch begins.
        """
        if graph.fixed is None or graph.again is None or self._draws is not None:
            return graph
        watch = partial(FirstStep, self._model, self._optimizer, ema=self._attached.ema)
        self._again = WatchedAgain(watch, graph.again)
        return replace(graph, again=self._again)

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
        now, seen = time.perf_counter(), self._watch.take(self.index % self._recorded.anchor_stride == 0)
        if self._again is not None:
            self._again.stop()
        if self._draws is not None and (other := self._draws.after(self.index)):
            seen = replace(seen, change=seen.change or f"step {self.index}: {other}")
        rates = rates_of_step(seen, learning_rates)
        value, norm = number(loss), None if gradient_norm is None else number(gradient_norm)
        if self._first is not None and self._is_first:
            gives_step = partial(self._gives_step, seen=seen, batch=batch, rates=rates, loss=value, norm=norm)
            self._start_after(self._first, seen, batch, gives_step)
        assert self._recorder is not None
        kept, graph = self._examined(seen, batch, rates, value, norm)
        if not isinstance(graph, StepGraph):  # the weights may have been changed since the optimizer stepped
            self._recorder.forget_noted()
        self._recorder.step(
            self.index,
            kept,
            loss=value,
            learning_rate=rates[0],
            learning_rates=rates if len(set(rates)) > 1 else None,
            gradient_norm=norm,
            seconds=now - self._last_step,
            tags=(NO_RATE,) if None in seen.rates and not learning_rates else (),
            **self._named(graph),
        )
        if self._guard is not None and self._reason is None and graph is not None:
            held = graph if isinstance(graph, StepGraph) else None
            self._guard.add(RecordedStep(self.index, held, kept, rates, value, norm, self._recorder.sketch))
            if self.index % self._recorded.anchor_stride == 0:
                self._guard.end_segment()
        self._prepare_check()
        self._last_step = time.perf_counter()

    def _start_after(
        self, first: FirstStep, seen: Stepped, batch: Any, gives_step: Callable[[StepGraph], bool]
    ) -> None:
        """Make the graph of the first step, which was just taken, and start the run from the state before it."""
        first.stop()
        before: State = self._before
        self._is_first, reasons = False, list[str]()
        if seen.count == 1:
            with sheltered(reasons.append):
                self._graph = first.graph(batch, gives_step)
        else:
            reasons.append(STEPS_BETWEEN.format(self.index, seen.count))
        if self._draws is not None:
            self._draws.watched()
            if self._graph is None or not (self._graph.seed is not None or draws_natively(self._graph.captured.graph)):
                self._draws.close()
                self._draws = None
        if self._graph is None:
            self._no_graph = without_graph(self._source.blockers, reasons[0]).no_graph
        else:
            self._graph = self._watching_again(self._graph)
            before = self._before_as(self._graph)
        give_back()  # what the capture took
        self._start(before)
        self._before = {}
        if self._guard is not None:
            self._guard.keep(before)
        give_back()

    def _before_as(self, graph: StepGraph) -> State:
        """The state before the first step as a graph carries it."""
        drawn = (name for name in self._before if not name.startswith("rng."))
        named = {name: self._before[name] for name in drawn}
        return graph.empty_slots() | named | generator_of(self._draws, graph.captured.graph, before=True)

    def _gives_step(
        self,
        graph: StepGraph,
        *,
        seen: Stepped,
        batch: Any,
        rates: tuple[float, ...],
        loss: float,
        norm: float | None,
    ) -> bool:
        """Whether a graph gives the first step, which was just taken."""
        before, live = self._before_as(graph), self._state()
        after = graph.empty_slots() | {name: value for name, value in live.items() if not name.startswith("rng.")}
        after |= generator_of(self._draws, graph.captured.graph)
        named = named_tensors(batch, count_of(batch, graph)) | moves_of(self._draws, graph.captured.graph)
        if graph.misfit(named):  # the example that was given has other shapes
            return True
        check = SelfCheck(self._device, self._recorded.loss_decimals, self._recorded.anchor_stride)
        taken = TakenStep(self.index, before, after, named, batch, rates, loss, norm, seen.gradients or {})
        return not check.difference(taken, check.replay(graph, taken))

    def _finish(self) -> None:
        assert self._recorder is not None
        assert self._watch is not None
        if self.index % self._recorded.anchor_stride:
            if "projection" in self._recorded.summaries and not self._recorder.holds_weights():
                raise UsageError(CHANGED_AT_END)
            if self._guard is not None and self._guard.reason is None and (written := self._watch.written_at_end()):
                self._guard.withdraw_last(self.index, written)
            self._recorder.anchor(self.index)
            if self._guard is not None and self._guard.reason is None:
                self._guard.end_segment(is_last=True)
        if self._guard is not None and self._guard.reason is None:
            self._guard.finish()
        self._recorder.finish(self._reason, self._withdrawn)
        self._close()

    def _examined(
        self, seen: Stepped, batch: Any, rates: tuple[float, ...], loss: float, norm: float | None
    ) -> tuple[Batch, StepGraph | str | None]:
        """The batch and the graph of the step, after a check that it was a captured one; or why it has no graph.

        `None` stands for a run without graphs.
        """
        if self._graph is None or self._guard is None or self._reason is not None:
            return describe_batch(batch), None
        count = count_of(batch, self._graph)
        named = named_tensors(batch, count) | moves_of(self._draws, self._graph.captured.graph)
        words = None if self._draws is None else self._draws.words
        found = self._guard.examine(Observed(self.index, seen, named, batch, count, rates, loss, norm, words))
        if self._guard.reason is not None:
            return describe_batch(batch), None
        places = None if self._rows is None else self._rows.positions(named)
        kept = Batch(digest=keep_batch(self._run, named), indices=places)
        return kept, found

    def _named(self, found: StepGraph | str | None) -> dict[str, Any]:
        """What a record says of the graph of its step, beside what the spec says."""
        if self._graph is None or found is None:
            return {}
        if isinstance(found, str):
            return {"no_graph": found}
        rules = None if found.rules == self._graph.rules else found.rules
        return {"graph": None if found.root == self._graph.root else found.root, "optimizer": rules}

    def _prepare_check(self) -> None:
        """Keep the state if the next step is one to check, and let it draw."""
        assert self._watch is not None
        if self._draws is not None:
            self._draws.begin(self.index + 1)
        if self._again is not None:
            self._again.forget()
        if self._new_batches is not None:
            self._new_batches.next_step()
        self._watch.keeps_gradients = self._guard is not None and self._guard.is_due(self.index + 1)
        if self._guard is not None and self._watch.keeps_gradients:
            self._guard.keep(self._state())

    def _close(self) -> None:
        self._is_over = True
        if self._first is not None:
            self._first.stop()
        if self._draws is not None:
            self._draws.close()
        if self._new_batches is not None:
            self._new_batches.close()
        if self._again is not None:
            self._again.stop()
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
        live |= {} if self._attached.ema is None else self._attached.ema.live(self._model)
        state = {name: to_tensor(value) for name, value in live.items()}
        state["position.step"] = Tensor.of(np.asarray(self.index, np.int64))
        if self._graph is None:
            return state | generator_state(self._device, foreign=True)
        state |= {name: empty for name, empty in self._graph.empty_slots().items() if name not in state}
        return state | generator_of(self._draws, self._graph.captured.graph)


def rates_of_step(seen: Stepped, given: Sequence[float] | None) -> tuple[float, ...]:
    """The rates that the optimizer stated at its step; the `given` ones, or 0, if it states none.

    A loop that has stepped its schedule knows the rates of the next step only, and would be taken for a fraud.
    """
    stated = tuple(rate for rate in seen.rates if rate is not None)
    if len(stated) == len(seen.rates):
        return stated
    return tuple(given or (rate or 0.0 for rate in seen.rates))


def sketch_with(recorded: RecordRecipe, seed: bytes) -> Sketch | None:
    """How the weights of a replay are sketched; `None` if no record has a sketch."""
    if "projection" not in recorded.summaries:
        return None

    def sketching(weights: Mapping[str, torch.Tensor]) -> Callable[[], str]:
        return Sketcher(Projection(seed, recorded.projection_width), weights).sketch

    return sketching


def number(value: float | torch.Tensor) -> float:
    """A number of the loop as a float; a tensor is detached and read."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)
