"""The first wrong call of a claim about recorded calls, and what a challenger could not have seen in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tallystick.audits.calls import Calls
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.tensors import State, TensorSpec
from tallystick.disputes.evidence.locate import ChallengerWork, Leeway, deviation
from tallystick.disputes.evidence.replays import MARGIN
from tallystick.disputes.evidence.rounding import (
    LEAST,
    SAFETY,
    ChangedEngine,
    Kernel,
    blind_spots,
    differences,
    drifts_of,
    hidden_of,
    is_wide,
    tensors_read,
)
from tallystick.disputes.game.protocols import Doubt
from tallystick.formats.records import CallRecord
from tallystick.programs.admission import Deriver
from tallystick.programs.execution import Arguments, Engine, Reference, execute
from tallystick.programs.graph import Graph, Node, Ref, operands_of
from tallystick.programs.step_names import BATCH
from tallystick.verdicts.leaf.request import LeafLimits

# Find the first wrong call of a model: its outputs differ from a replay, or the graph does not accept its inputs.
#
# Every call is decided on its own. So a defect of one call, such as outputs under other names or a token without an
# embedding, cannot hide a defect of another call. An honest prover posts only calls that its graph accepts
# (`require_disputable`).


def doubt_calls(calls: Calls, engine: Engine, work: ChallengerWork, weights: State | None = None) -> Doubt | None:
    """The first call that is wrong; `None` if all are right. The claimed `weights` are read where they are not given.

    A call that does not run on this machine is doubted in two cases: the definition of an operator refuses its
    operands, or other calls of the same graph do run. Raises `UnavailableError` if no call runs.
    """
    failed = list[tuple[int, UnavailableError]]()
    work.remarks.clear()
    replay = _Replay(calls, engine, weights, work.remarks)
    for place, record in enumerate(calls.records):
        try:
            reason = replay.objection(record)
        except UnavailableError as error:
            failed.append((place, error))
            continue
        work.replayed += 1
        if reason:
            return Doubt(place, place + 1, f"call {record.index}: {reason}")
    if len(failed) == len(calls.records) > 0:
        raise failed[0][1]
    return next((Doubt(at, at + 1, f"call {at + 1}, unlike others: {error}") for at, error in failed), None)


def unseen_in_calls(calls: Calls, engine: Engine, weights: State | None = None) -> tuple[str, ...]:
    """What could be wrong with the first call without being doubted; raises `UnavailableError` if it does not run."""
    return _Replay(calls, engine, weights).unseen(calls.records[0]) if calls.records else ()


def require_disputable(calls: Calls) -> None:
    """Raise `UsageError` if a call has other inputs or outputs than its graph: its operators could not be opened."""
    graph = calls.graph
    specs = graph.specs()
    graph_inputs = {each.name: each.spec for each in graph.inputs if each.name.startswith(BATCH)}
    graph_outputs = {output.name: specs[output.value] for output in graph.outputs}
    for record in calls.records:
        inputs = {f"{BATCH}{name}": TensorSpec.of(tensor) for name, tensor in calls.inputs(record).items()}
        outputs = {name: TensorSpec.of(tensor) for name, tensor in calls.outputs(record).items()}
        if odd := _difference(inputs, graph_inputs) or _difference(outputs, graph_outputs):
            line = (
                f"call {record.index} cannot be disputed: {odd}; record calls of each shape in a directory of their own"
            )
            raise UsageError(f"{calls.run.path}: {line}")


def _difference(recorded: Mapping[str, TensorSpec], stated: Mapping[str, TensorSpec]) -> str:
    """The first name whose recorded spec differs from the spec in the graph; empty if all are equal."""
    names = sorted(name for name in recorded.keys() | stated.keys() if recorded.get(name) != stated.get(name))
    return f"{names[0]} is {recorded.get(names[0])}, and {stated.get(names[0])} in the graph" if names else ""


@dataclass(frozen=True)
class _Replay:
    """Replays calls one by one; weights, constants and specs are read once for all calls."""

    calls: Calls
    engine: Engine
    weights: State | None
    remarks: list[str] = field(default_factory=list)
    hidden: dict[str, float] = field(default_factory=dict)

    def objection(self, record: CallRecord) -> str:
        """What is wrong with a call; empty if nothing is. Raises `UnavailableError` if it does not run here."""
        bindings = {**self._state, **self._inputs(record)}
        try:
            replayed = execute(self.calls.graph, bindings, _checked_by_definition(self.engine, self._specs))
        except MalformedError as error:
            return f"the graph does not take it: {error}"
        recorded = self.calls.outputs(record)
        if odd := sorted(replayed.keys() ^ recorded.keys()):
            return f"{odd[0]} is {'not recorded' if odd[0] in replayed else 'no output of the graph'}"
        own = _RecomputedCall(self.calls.graph, bindings, self.engine, replayed, self._leeway, self.hidden)
        reason = own.objection(recorded)
        if not reason and (remark := own.remark(recorded)):
            self.remarks.append(f"call {record.index}: {remark}")
        return reason

    def unseen(self, record: CallRecord) -> tuple[str, ...]:
        """What could be wrong with a call, and stay within the limits."""
        graph, bindings = self.calls.graph, {**self._state, **self._inputs(record)}
        own = _RecomputedCall(
            graph, bindings, self.engine, execute(graph, bindings, self.engine), self._leeway, self.hidden
        )
        return blind_spots(graph, self.engine, lambda cheap: bool(own.objection(execute(graph, bindings, cheap))))

    def _inputs(self, record: CallRecord) -> State:
        return {f"{BATCH}{name}": tensor for name, tensor in self.calls.inputs(record).items()}

    @cached_property
    def _state(self) -> State:
        """Constants and weights, which are the same for every call."""
        return {**self.calls.constants, **(self.calls.weights() if self.weights is None else self.weights)}

    @cached_property
    def _specs(self) -> Mapping[Ref, TensorSpec]:
        return self.calls.graph.specs()

    @cached_property
    def _leeway(self) -> Leeway:
        return Leeway.of(self.calls.graph.nodes, self._specs)


@dataclass(frozen=True)
class _RecomputedCall:
    """A call as this machine computes it, with how far outputs of another one may lie."""

    graph: Graph
    bindings: State
    engine: Engine
    own: State
    leeway: Leeway
    hidden: dict[str, float]
    """What one sum at its bound moves each output by; computed for the first call that needs it, and then kept."""

    def objection(self, recorded: State) -> str:
        """Why these outputs are not those of the call; empty if they may be."""
        refs = {output.name: output.value for output in self.graph.outputs}
        far = {name: deviation(recorded[name], own, self.leeway, refs[name]) for name, own in self.own.items()}
        if worst := next((name for name in sorted(far) if far[name] > MARGIN), None):
            return f"{worst} is off by {far[worst]:.3g} tolerances"
        return self._beyond_rounding(recorded)

    def remark(self, recorded: State) -> str:
        """What is off by more than rounding, and by too little for a judge to convict by a bound; empty for nothing."""
        for name, gap, allowed in self._odd(recorded):
            if gap <= self._hidden[name]:
                return f"{_off(name, gap, allowed)}, but proven bounds reach {self._hidden[name]:.2g}"
        return ""

    def _beyond_rounding(self, recorded: State) -> str:
        """The same by what rounding does to this call, where a judge would convict."""
        reasons = (_off(name, gap, allowed) for name, gap, allowed in self._odd(recorded) if gap > self._hidden[name])
        return next(reasons, "")

    def _odd(self, recorded: State) -> Iterator[tuple[str, float, float]]:
        """Outputs of a graph without 16 bits that are off by more than rounding; noise runs only if it is needed."""
        gaps = differences(recorded, self.own) if is_wide(self.graph) else {}
        for name, gap in sorted(gaps.items()):
            if gap > LEAST[self.own[name].dtype] and gap > (allowed := SAFETY * self._drifts[name]):
                yield name, gap, allowed

    @property
    def _hidden(self) -> Mapping[str, float]:
        if not self.hidden:
            self.hidden.update(hidden_of(self.graph, self.bindings, self.engine, self.own))
        return self.hidden

    @cached_property
    def _drifts(self) -> Mapping[str, float]:
        return drifts_of(self.graph, self.bindings, self.engine, self.own)


def _off(name: str, gap: float, allowed: float) -> str:
    return f"{name} is {gap:.2g} of itself off, and rounding moves it by less than {allowed:.2g}"


def _checked_by_definition(engine: Engine, specs: Mapping[Ref, TensorSpec]) -> ChangedEngine:
    """An engine that runs the definition of an operator if its own kernel fails.

    If the definition refuses the operands too, it raises `MalformedError`: the operands are wrong, not the kernel.
    Otherwise the kernel's `UnavailableError` is raised.
    """

    def change(node: Node, run: Kernel) -> Kernel:
        def guarded(arguments: Arguments) -> tuple[Any, ...]:
            try:
                return run(arguments)
            except UnavailableError:
                if not LeafLimits().are_passed_by(Deriver()(node, specs)):  # not too large for the reference
                    reference = Reference()
                    tensors = tensors_read(engine, node, arguments, specs)
                    values = {ref: reference.load(tensor) for ref, tensor in tensors.items()}
                    reference.prepare(node)(operands_of(node, values))
                raise

        return guarded

    return ChangedEngine(engine, change)
