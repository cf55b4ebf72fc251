"""Compares a loop with its step graphs while it runs, and says which steps they do not give."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from tallystick.commitments.digests import Digest
from tallystick.errors import UnavailableError
from tallystick.recorders.boundary import printed, say, sheltered, unsaid
from tallystick.recorders.draws import OTHER_COUNT, OTHER_NATIVE, draws_natively, native_words_of, words_of
from tallystick.recorders.freed_memory import give_back
from tallystick.recorders.likely_cause import GraphMismatch
from tallystick.recorders.self_audit import UNSEEN, Departure, RecordedStep, SelfAudit, Sketch
from tallystick.recorders.self_check import SelfCheck, TakenStep
from tallystick.recorders.set_aside import set_aside
from tallystick.recorders.step_graph import StepGraph, numbers_of
from tallystick.recorders.step_graphs import Consumed, StepGraphs, StepSettings
from tallystick.recorders.step_watch import Stepped, switches
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import State
from tallystick.transcripts.claim import WITHDRAWN_MAX, Withdrawn
from tallystick.transcripts.recipe import RecordRecipe

STEPS_BETWEEN: Final = (
    "step {}: the optimizer stepped {} times since the last record, and has to once; with micro-batches, record after "
    "`optimizer.step()` and give batch= as a list of them (`accumulation=` beside `loss=`)"
)
TOUCHED: Final = (
    "step {}: gradients are changed between backward() and optimizer.step() otherwise than in the captured step; "
    "clip in every step, and scale the loss by a tensor of batch= instead"
)
FINISH_SECONDS: Final = 20.0
"""How long the replay of segments takes in the end, where one of the run was not what was recorded."""
DIFFERING_MAX: Final = 4
"""After so many checks in a row that failed, no later step is checked any more, and none is said to have a graph."""


@dataclass(frozen=True)
class Observed:
    """A step as the recorder was told of it and as the watch saw it.

    `named` is the batch by the names of a graph, `count` says of how many micro-batches. `words` is how many random
    words were drawn from the seed of the run, if it has one.
    """

    index: int
    seen: Stepped
    named: State
    batch: Any
    count: int
    rates: tuple[float, ...]
    loss: float
    gradient_norm: float | None
    words: int | None = None

    @property
    def consumed(self) -> Consumed:
        """The batch of the step."""
        return Consumed(self.named, numbers_of(self.batch, self.count), self.batch, self.count)

    @property
    def settings(self) -> StepSettings:
        """What the step was taken with."""
        return StepSettings(self.seen.rules, self.seen.trained)


class GraphGuard:
    """Holds the graphs of a loop to its steps.

    `reason` says why they were withdrawn for the whole run, and `None` that they stand. `withdrawn` are recorded steps
    that a later check has put in doubt: those since the last step that was as its graph says.
    """

    def __init__(
        self,
        graph: StepGraph,
        model: torch.nn.Module,
        device: str,
        recorded: RecordRecipe,
        state: Callable[[], State],
        run: RunDirectory,
        sketch: Sketch | None,
        share: float,
    ) -> None:
        decimals = recorded.loss_decimals
        self.reason: str | None = None
        self.withdrawn: list[Withdrawn] = []
        self._run = run
        self._audit, self._right, self._doubted, self._differing = SelfAudit(run, decimals, sketch, share), 0, 0, 0
        self._graphs, self._words = StepGraphs(graph, run), dict[Digest, int]()
        self._model, self._device, self._decimals, self._state = model, device, decimals, state
        self._check: SelfCheck | None = SelfCheck(device, decimals, recorded.anchor_stride)
        self._ended: str | None = None
        self._switches = switches()
        self._departed: str | None = None
        self._said = set[str]()

    def examine(self, step: Observed) -> StepGraph | str:
        """Check that the step was a captured one; returns its graph, or why it has none.

        Raises `UnavailableError` for a loss that nothing equals.
        """
        found: StepGraph | str | None = self._ended or self._departure(step.seen, step.index)
        if not found:
            found = self._graphs.of(step.consumed, step.settings)
        if found is None:
            found = self._new(step)
        elif isinstance(found, StepGraph):
            found = self._held_to(found, step)
        if isinstance(found, str) and self.reason is None and not self._ended:
            self._say(f"step {step.index} cannot be replayed, nor any other of its kind", found)
        if self._check is not None:
            self._check.before = None  # that of a step without a graph is not the state before the next one
        return found if isinstance(found, StepGraph) else printed(found)

    @property
    def keeps(self) -> bool:
        """Whether the state before the next step is kept, or no step is checked any more."""
        return self._check is None or self._ended is not None or self._check.before is not None

    def is_due(self, index: int) -> bool:
        """Whether step `index` is one to replay."""
        return self._check is not None and self._ended is None and self._check.is_due(index)

    def keep(self, state: State) -> None:
        """Keep the state before a step that is due, as it is now."""
        if self._check is not None:
            self._check.keep(set_aside(self._run.path, state))

    def add(self, step: RecordedStep) -> None:
        """Note a step that was recorded, for its replay."""
        self._audit.add(step)

    def end_segment(self, is_last: bool = False) -> None:
        """Replay the steps between the last two anchors, the later of which was just written; withdraw what differs."""
        segment = self._audit.end_segment()
        if self._check is None or all(step.graph is None for step in segment):
            return
        is_affordable = is_last or self._audit.is_affordable
        if not is_affordable or self._switches != switches() or not self._replayed(self._check, segment):
            self._audit.leave(segment)

    def finish(self) -> None:
        """Where a segment was not what was recorded, replay those that were not replayed, or withdraw them."""
        check, began = self._check, time.monotonic()
        if self._departed is None or check is None:
            return
        for segment in self._audit.unseen[::-1]:
            if time.monotonic() - began > FINISH_SECONDS or not self._replayed(check, segment):
                self._withdraw(segment[0].index, segment[-1].index, UNSEEN.format(self._departed))
        if self._audit.forgotten is not None:
            self._withdraw(*self._audit.forgotten, UNSEEN.format(self._departed))
        self._audit.unseen, self._audit.forgotten = [], None

    def withdraw(self, reason: str) -> None:
        """Withdraw the graph for the whole run, and say why."""
        self.close()
        self.reason = printed(reason)
        say(f"the run cannot be replayed: {self.reason}")

    def withdraw_last(self, index: int, reason: str) -> None:
        """Withdraw the graph of the last step, whose state at the end is not the one it left."""
        self._withdraw(index, index, reason)

    def close(self) -> None:
        """Replay no further step."""
        self._check = None

    def _replayed(self, check: SelfCheck, segment: list[RecordedStep]) -> bool:
        """Whether a segment could be replayed; what differs in it is withdrawn."""
        first, last = segment[0].index, segment[-1].index
        before = min([each.first for each in self.withdrawn if first <= each.first <= last], default=last + 1)
        before = first if any(each.first < first <= each.last for each in self.withdrawn) else before
        found: Departure | bool | None = False
        with sheltered(unsaid):  # a file that cannot be read tells nothing about the loop
            found = self._audit.replay(check, segment, before)
        if isinstance(found, Departure):
            self._departed = self._departed or found.reason
            self._withdraw(found.first, before - 1, found.reason)
        elif found is None and before > last:
            self._right = max(self._right, last)
        give_back()
        return found is not False

    def _departure(self, seen: Stepped, index: int) -> str:
        return seen.change or ("" if seen.count == 1 else STEPS_BETWEEN.format(index, seen.count))

    def _new(self, step: Observed) -> StepGraph | str:
        """The graph of a step whose kind comes for the first time, or why there is none.

        One that follows from others is taken where the step shows it. A captured one is compared with the step, too.
        """
        check = self._check
        if check is not None and check.before is not None:
            derived = self._graphs.derived(step.consumed, step.settings)
            if derived is not None and self._is_given_by(check, derived, step, check.before):
                self._graphs.keep(derived)
                return self._held_to(derived, step)
        found = self._graphs.captured(step.consumed, step.settings)
        if isinstance(found, StepGraph):
            found = self._held_to(found, step, is_new=True)
        return self._graphs.refuse(step.consumed, step.settings, found) if isinstance(found, str) else found

    def _is_given_by(self, check: SelfCheck, graph: StepGraph, step: Observed, before: State) -> bool:
        """Whether a graph that was not captured gives the step; then the step needs no other check."""
        taken, differences = self._taken(step, before), list[str]()
        with sheltered(differences.append):
            if difference := check.difference(taken, check.replay(graph, taken)):
                differences.append(difference)
        if differences:
            check.forget(graph)
            return False
        self._right, self._differing = step.index, 0
        check.done(step.index)
        return True

    def _held_to(self, graph: StepGraph, step: Observed, is_new: bool = False) -> StepGraph | str:
        """The graph, another one that was captured for a change of the loop, or what keeps both from being right."""
        if other := self._other_count(graph, step):
            return f"step {step.index}: {other}"
        if not math.isfinite(step.loss):
            raise UnavailableError(f"the loss of step {step.index} is {step.loss}, and no replay is compared with that")
        found: StepGraph | str = graph
        if self._check is not None and self._check.before is not None:
            found = self._compared(self._check, graph, step, self._check.before, is_new)
        if step.seen.is_touched and found is graph:  # after the comparison, which finds a more exact reason
            return TOUCHED.format(step.index)
        return found

    def _other_count(self, graph: StepGraph, step: Observed) -> str:
        """How a step drew more or fewer random words than the captured one; empty if it drew as many."""
        if step.words is None:
            return ""
        if draws_natively(graph.captured.graph):
            return "" if step.words == native_words_of(graph.captured.graph) else OTHER_NATIVE
        is_first = graph is self._graphs.first
        wanted = self._words.setdefault(graph.root, step.words if is_first else words_of(graph.captured.graph))
        return "" if step.words == wanted else OTHER_COUNT.format(step.words, wanted)

    def _compared(
        self, check: SelfCheck, graph: StepGraph, step: Observed, before: State, is_new: bool
    ) -> StepGraph | str:
        """Replay the step that was just taken; where the result differs, try a graph of the loop as it is now."""
        taken = self._taken(step, before)
        found: StepGraph | str = graph
        reasons = list[str]()
        with sheltered(reasons.append):
            replayed = check.replay(graph, taken)
            if where := check.difference(taken, replayed):
                doubt = GraphMismatch(graph, self._device, taken, where, self._decimals, self._model)
                found = doubt.cause(check, replayed)
            check.done(step.index)
            replayed.clear()
            give_back()
        found = reasons[0] if reasons else found
        if isinstance(found, StepGraph):
            self._right, self._differing = step.index, 0
            return found
        return self._changed(check, taken, step, found, is_new)

    def _changed(self, check: SelfCheck, taken: TakenStep, step: Observed, why: str, is_new: bool) -> StepGraph | str:
        """What a loop that does something else than before has from this step on.

        Nothing, where the graph `is_new`: it was captured from the loop as it is now.
        """
        if self._right == 0:
            self.withdraw(why)
            return why
        self._departed = self._departed or why
        self._doubt(step.index - 1, why)
        self._doubted = step.index
        if is_new:
            return why
        self._differing += 1
        with sheltered(unsaid):
            again = self._graphs.captured(step.consumed, step.settings)
            if isinstance(again, StepGraph) and not check.difference(taken, check.replay(again, taken)):
                self._right = step.index
                return again
        if self._differing >= DIFFERING_MAX:
            self._end(step.index, why)
        return why

    def _taken(self, step: Observed, before: State) -> TakenStep:
        return TakenStep(
            step.index,
            before,
            self._state(),
            step.named,
            step.batch,
            step.rates,
            step.loss,
            step.gradient_norm,
            step.seen.gradients or {},
        )

    def _doubt(self, last: int, reason: str) -> None:
        """Withdraw the graphs of the steps between the last one that was right and `last`."""
        first = max(self._right, self._doubted) + 1
        if last >= first:
            self._withdraw(first, last, reason)

    def _withdraw(self, first: int, last: int, reason: str) -> None:
        steps = f"step {last}" if first == last else f"steps {first} to {last}"
        self._say(f"{steps} cannot be replayed", reason)
        self.withdrawn.append(Withdrawn(first=first, last=last, reason=printed(reason)))
        self.withdrawn.sort(key=lambda each: each.first)
        if len(self.withdrawn) > WITHDRAWN_MAX:
            one, two = self.withdrawn[-2:]
            self.withdrawn[-2:] = [Withdrawn(first=one.first, last=max(one.last, two.last), reason=two.reason)]

    def _end(self, index: int, reason: str) -> None:
        self._ended = printed(reason)
        self._say(f"no step from step {index} on can be replayed", reason)

    def _say(self, what: str, why: str) -> None:
        """Say a reason once, whatever step it names."""
        if (kind := re.sub(r"\d+", "", why)) not in self._said:
            self._said.add(kind)
            say(f"{what}: {printed(why)}")
