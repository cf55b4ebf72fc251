"""Compares a loop with its step graphs while it runs, says which steps they do not give, and why."""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from tallystick.core.digests import Digest
from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import State
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.tensors import restore_tensors
from tallystick.engines.torch.wrappers import is_compiled
from tallystick.formats.claims import WITHDRAWN_MAX, Withdrawn
from tallystick.formats.records import StepRecord
from tallystick.recording.boundary import contain_errors, ignore, printable, warn
from tallystick.recording.inference import buffers_of, parameters_of
from tallystick.recording.loop.draws import OTHER_COUNT, OTHER_NATIVE, draws_natively, native_words_of, words_of
from tallystick.recording.loop.self_check import UNSEEN, Recorded, SelfAudit, SelfCheck, inputs_of, spill, trim_heap
from tallystick.recording.loop.step_graph import StepGraph
from tallystick.recording.loop.step_graphs import StepGraphs
from tallystick.recording.loop.watchers import DepartureWatch, StepSeen
from tallystick.recording.run_recorder import RunRecorder

# Why a step graph does not reproduce the loop, and what the author of the loop can change.
#
# Each cause has its mark. Gradients that differ by one factor are clipped or scaled. A loss that equals the one under
# autocast comes from autocast. If gradients are equal and weights are not, the difference arises in or after the
# optimizer step.

PARALLEL: Final = 1e-4
"""The largest distance, relative to the norm, at which gradients count as equal up to one factor."""
HALVES: Final = (torch.bfloat16, torch.float16)
UNKNOWN: Final = "something in the loop differs between steps, and nothing that is known here explains it"
CLIPPED_OTHERWISE: Final = (
    "gradients are scaled by another factor than in the captured step; clip in every step, to the same norm"
)
OF_BUFFER: Final = (
    "a forward pass outside of the step writes into it (call model.eval() before a validation), or it is assigned "
    "anew, or changed after the forward pass (write into it in place, as with `copy_`, in every step before that pass)"
)
READ_BACK: Final = (
    "gradients or weights are changed by a number that is read back (`float()`, `.item()`, or a branch); keep it a "
    "tensor, as with torch.clamp or torch.where"
)
AFTER_GRADIENTS: Final = (
    "its gradients are the same: the optimizer's kernel rounds otherwise, or weights are changed "
    "after it and not in place (`weight.data = …`, NumPy); write into them in place, as with `copy_`"
)
GIVE_BATCH: Final = "give batch=(inputs, targets), all that the loss reads, and what changes as a tensor"


@dataclass(frozen=True)
class _GraphMismatch:
    """A graph, a step that it does not reproduce, and `where`: the first of loss, norm or state that differs.

    `model` is as the loop calls it, and `before` the state before the step.
    """

    check: SelfCheck
    graph: StepGraph
    step: StepSeen
    before: State
    where: str
    model: torch.nn.Module

    def cause(self, replayed: Mapping[str, torch.Tensor]) -> str:
        """One line that names the likely cause and its remedy."""
        cause = UNKNOWN
        with contain_errors(ignore):  # if the search for a cause fails, the general one is given
            cause = next(self._causes(replayed), UNKNOWN)
        return f"step {self.step.index}: the captured step gives another {self.where} than the loop: {cause}"

    def _causes(self, replayed: Mapping[str, torch.Tensor]) -> Iterator[str]:
        if self.where == "gradient_norm":
            yield "the norm that was given is not that of the gradient before clipping; leave `gradient_norm=` out"
        again = self.check.replay(self.graph, self.step, self.before)
        if any(not torch.equal(replayed[name], value) for name, value in again.items() if not value.isnan().any()):
            yield "kernels here give other bits each time; use torch.use_deterministic_algorithms(True)"
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if is_distributed and (count := torch.distributed.get_world_size()) > 1:
            yield f"{count} processes average their gradients, and a graph holds the step of one; train in one"
        if is_compiled(self.model):
            yield "torch.compile rounds otherwise; record the loop uncompiled"
        if self.where != "loss":
            yield from self._gradients()
        elif self.graph.loop.fixed is None:
            yield from self._autocast()
        elif self.step.index == 1:
            yield "the loss that was recorded is not the one of backward(); give that, or the mean of its micro-batches"
        else:
            fixed = self.graph.loop.fixed
            what = f"{fixed[0]} that is not in batch=" if fixed else "a number in the loss that changes, or a branch"
            yield f"its first step was watched, and this one differs by {what}; {GIVE_BATCH}"

    def _autocast(self) -> Iterator[str]:
        if self.check.has_loss(self.step.loss, self._eager_loss(torch.float32)):
            yield "a number in `loss=` has changed since the graph was captured; give such numbers as tensors in batch="
        for dtype in HALVES:
            if self.check.has_loss(self.step.loss, self._eager_loss(dtype)):
                name = str(dtype).removeprefix("torch.")
                yield f"the loop runs under autocast in {name}; put `with torch.autocast(...)` inside `loss=`"

    def _eager_loss(self, dtype: torch.dtype) -> float:
        loop, device = self.graph.loop, self.check.device
        model = copy.deepcopy(loop.model)
        restore_tensors(parameters_of(model) | buffers_of(model), self.before)
        devices = [torch.cuda.current_device()] if device == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.autocast(device, dtype, enabled=dtype in HALVES):
            losses = torch.stack([loop.loss(model, part).detach().float() for part in self.step.parts])
        return float(losses.mean() if loop.reduction == "mean" else losses.sum())

    def _gradients(self) -> Iterator[str]:
        if self.graph.loop.edits.reads_back:
            yield READ_BACK
        program = TorchEngine(self.check.device).compile(self.graph.captured.graph)
        results = program(inputs_of(self.graph, self.check.device, self.step, self.before))
        ours, theirs = {name: results[f"gradients.{name}"] for name in self.graph.trained}, self.step.gradients
        if ours.keys() != theirs.keys():
            return
        if all(torch.equal(ours[name], theirs[name]) for name in ours):
            yield OF_BUFFER if self.where.startswith("buffers.") else AFTER_GRADIENTS
            return
        ratio = _ratio(ours, theirs)
        if ratio is None:
            yield (
                "gradients are changed between backward() and optimizer.step(), or left from before "
                "(optimizer.zero_grad()), or a loss of several parts is summed"
            )
        elif abs(ratio - 1) <= PARALLEL:
            yield "the loop's kernels round otherwise (compiled, or another memory format)"
        elif ratio < 1 or self.graph.loop.clip_norm is not None:
            yield CLIPPED_OTHERWISE
        else:
            yield (
                f"the loop's gradients are {ratio:.4g} times those of the recorded loss; multiply the loss by a tensor "
                "of batch=, and record the product"
            )


def _ratio(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float | None:
    """The factor r with theirs ≈ r · ours over all gradients, by least squares; None if no factor fits."""
    a = torch.cat([ours[name].double().flatten() for name in sorted(ours)])
    b = torch.cat([theirs[name].double().flatten() for name in sorted(ours)])
    ratio = float(a @ b / (a @ a))
    return ratio if ratio > 0 and float((b - ratio * a).norm()) <= PARALLEL * float(b.norm()) else None


# Compares a loop with its step graphs while it runs, and says which steps they do not give.

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


class GraphGuard:
    """Holds the graphs of a loop to its steps, once `begin` has given the first one; before that it does nothing.

    `reason` says why the whole run has no graph, and `None` that it has. `withdrawn` are recorded steps that a later
    check has put in doubt: those since the last step that was as its graph says. `model` is as the loop calls it.
    """

    def __init__(self, model: torch.nn.Module, state: Callable[[], State], share: float, reason: str | None) -> None:
        self.reason, self.withdrawn = reason, list[Withdrawn]()
        self._model, self._state, self._share = model, state, share
        self._check: SelfCheck | None = None
        self._ended: str | None = None
        self._departed: str | None = None
        self._said, self._words = set[str](), dict[Digest, int]()
        self._right, self._doubted, self._differing = 0, 0, 0

    def begin(self, graphs: StepGraphs, recorder: RunRecorder, watch: DepartureWatch, device: str) -> None:
        """Check the steps of a run from now on."""
        recorded = recorder.spec.recorded
        self._graphs, self._run, self._watch, self._stride = graphs, recorder.run, watch, recorded.anchor_stride
        self._audit = SelfAudit(recorder.run, recorder.spec, self._share)
        self._check = SelfCheck(device, recorded.loss_decimals, recorded.anchor_stride)

    def examine(self, step: StepSeen) -> StepGraph | str | None:
        """The graph of a step, or why it has none; `None` in a run without graphs. Some steps are replayed first.

        Raises `UnavailableError` for a loss that nothing equals.
        """
        check, count = self._check, step.optimizer_steps
        if check is None:
            return None
        known = self._ended or step.change or ("" if count == 1 else STEPS_BETWEEN.format(step.index, count))
        found = known or self._graphs.of(step)
        if found is None:
            found = self._new(check, step)
        elif isinstance(found, StepGraph):
            found = self._compared(check, found, step)
        check.before = None  # that of a step without a graph is not the state before the next one
        if self.reason is not None:
            return None
        if isinstance(found, StepGraph):
            return found
        if not self._ended:
            self._say(f"step {step.index} cannot be replayed, nor any other of its kind", found)
        return printable(found)

    def is_due(self, index: int) -> bool:
        """Whether step `index` is one to replay."""
        return self._check is not None and self._ended is None and self._check.is_due(index)

    @property
    def wants_state(self) -> bool:
        """Whether the state before a step of a new kind is to be kept: not where it is, or no step is checked."""
        is_checking = self._check is not None and self._ended is None and self._check.before is None
        return is_checking and not self._watch.written_at_end()

    def keep(self, state: State) -> None:
        """Keep the state before a step that is due, as it is now."""
        if self._check is not None:
            self._check.before = spill(self._run.path, state)

    def add(self, record: StepRecord, graph: StepGraph | str | None) -> None:
        """Note a step that was recorded, for its replay; where its anchor was written, replay what leads to it."""
        if self._check is not None:
            self._audit.add(record, graph if isinstance(graph, StepGraph) else None)
            if record.index % self._stride == 0:
                self.end_segment()

    def end_segment(self, is_last: bool = False) -> None:
        """Replay the steps between the last two anchors, the later of which was just written; withdraw what differs."""
        if self._check is None:
            return
        segment = self._audit.end_segment()
        if any(graph is not None for _, graph in segment):
            is_affordable = (is_last or self._audit.is_affordable) and not self._watch.turned()
            if not is_affordable or not self._replayed(self._check, segment):
                self._audit.leave(segment)

    def finish(self) -> None:
        """Where a segment was not what was recorded, replay those that were not replayed, or withdraw them."""
        check, began = self._check, time.monotonic()
        if self._departed is None or check is None:
            return
        for segment in self._audit.unseen[::-1]:
            if time.monotonic() - began > FINISH_SECONDS or not self._replayed(check, segment):
                self._withdraw(segment[0][0].index, segment[-1][0].index, UNSEEN.format(self._departed))
        if self._audit.forgotten is not None:
            self._withdraw(*self._audit.forgotten, UNSEEN.format(self._departed))
        self._audit.unseen, self._audit.forgotten = [], None

    def check_end(self, index: int) -> None:
        """Withdraw the graph of the last step where its state at the end is not the one it left."""
        if self._check is not None and (written := self._watch.written_at_end()):
            self._withdraw(index, index, written)

    def close(self) -> None:
        """Replay no further step."""
        self._check = None

    def _replayed(self, check: SelfCheck, segment: list[Recorded]) -> bool:
        """Whether a segment could be replayed; what differs in it is withdrawn."""
        first, last = segment[0][0].index, segment[-1][0].index
        end = min([each.first for each in self.withdrawn if first <= each.first <= last], default=last + 1)
        end = first if any(each.first < first <= each.last for each in self.withdrawn) else end
        replayed = list[tuple[int, str] | None]()
        with contain_errors(ignore):  # a file that cannot be read tells nothing about the loop
            replayed.append(self._audit.replay(check, segment, end))
        for departure in replayed:
            if departure is not None:
                self._departed = self._departed or departure[1]
                self._withdraw(departure[0], end - 1, departure[1])
            elif end > last:
                self._right = max(self._right, last)
        trim_heap()
        return bool(replayed)

    def _new(self, check: SelfCheck, step: StepSeen) -> StepGraph | str:
        """The graph of a step whose kind comes for the first time, or why there is none.

        One that follows from others is taken where the step shows it. A captured one is compared with the step, too.
        """
        if check.before is not None and (derived := self._graphs.derived(step)) is not None:
            before, after, reasons = check.before, self._state(), list[str]()
            with contain_errors(reasons.append):
                reasons.append(check.difference(step, before, after, check.replay(derived, step, before)))
            if not any(reasons):
                self._is_right(step.index)
                check.done(step.index)
                self._graphs.keep(derived)
                return self._compared(check, derived, step)
            check.forget(derived)
        found = self._graphs.captured(step)
        if isinstance(found, StepGraph):
            found = self._compared(check, found, step, is_new=True)
        return self._graphs.refuse(step, found) if isinstance(found, str) else found

    def _compared(self, check: SelfCheck, graph: StepGraph, step: StepSeen, is_new: bool = False) -> StepGraph | str:
        """The graph, another one that was captured for a change of the loop, or what keeps both from being right."""
        if other := self._other_count(graph, step):
            return f"step {step.index}: {other}"
        if not math.isfinite(step.loss):
            raise UnavailableError(f"the loss of step {step.index} is {step.loss}, and no replay is compared with that")
        found: StepGraph | str = graph
        if (before := check.before) is not None:
            after, reasons = self._state(), list[str]()
            with contain_errors(reasons.append):
                replayed = check.replay(graph, step, before)
                if where := check.difference(step, before, after, replayed):
                    found = _GraphMismatch(check, graph, step, before, where, self._model).cause(replayed)
                check.done(step.index)
                replayed.clear()
                trim_heap()
            found = reasons[0] if reasons else found
            if isinstance(found, StepGraph):
                self._is_right(step.index)
            else:
                found = self._changed(check, step, before, after, found, is_new)
        if step.is_touched and found is graph:  # after the comparison, which finds a more exact reason
            return TOUCHED.format(step.index)
        return found

    def _other_count(self, graph: StepGraph, step: StepSeen) -> str:
        """How a step drew more or fewer random words than the captured one; empty if it drew as many."""
        if step.words is None:
            return ""
        if draws_natively(graph.captured.graph):
            return "" if step.words == native_words_of(graph.captured.graph) else OTHER_NATIVE
        is_first = graph is self._graphs.first
        wanted = self._words.setdefault(graph.root, step.words if is_first else words_of(graph.captured.graph))
        return "" if step.words == wanted else OTHER_COUNT.format(step.words, wanted)

    def _changed(
        self, check: SelfCheck, step: StepSeen, before: State, after: State, why: str, is_new: bool
    ) -> StepGraph | str:
        """What a loop that does something else than before has from this step on.

        Nothing, where the graph `is_new`: it was captured from the loop as it is now.
        """
        if self._right == 0:
            self.close()
            self.reason = printable(why)
            warn(f"the run cannot be replayed: {self.reason}")
            return why
        self._departed = self._departed or why
        first = max(self._right, self._doubted) + 1
        if step.index > first:
            self._withdraw(first, step.index - 1, why)
        self._doubted = step.index
        if is_new:
            return why
        self._differing += 1
        with contain_errors(ignore):
            again = self._graphs.captured(step)
            if isinstance(again, StepGraph) and not check.difference(
                step, before, after, check.replay(again, step, before)
            ):
                self._right = step.index
                return again
        if self._differing >= DIFFERING_MAX:
            self._ended = printable(why)
            self._say(f"no step from step {step.index} on can be replayed", why)
        return why

    def _is_right(self, index: int) -> None:
        self._right, self._differing = index, 0

    def _withdraw(self, first: int, last: int, reason: str) -> None:
        steps = f"step {last}" if first == last else f"steps {first} to {last}"
        self._say(f"{steps} cannot be replayed", reason)
        self.withdrawn.append(Withdrawn(first=first, last=last, reason=printable(reason)))
        self.withdrawn.sort(key=lambda each: each.first)
        if len(self.withdrawn) > WITHDRAWN_MAX:
            one, two = self.withdrawn[-2:]
            self.withdrawn[-2:] = [Withdrawn(first=one.first, last=max(one.last, two.last), reason=two.reason)]

    def _say(self, what: str, why: str) -> None:
        """Say a reason once, whatever step it names."""
        if (kind := re.sub(r"\d+", "", why)) not in self._said:
            self._said.add(kind)
            warn(f"{what}: {printable(why)}")
