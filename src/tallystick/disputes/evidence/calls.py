"""Which call of a model goes wrong: the first whose outputs are not those of a replay, or that the graph does not take.

Every call is decided by itself: what one call hides, such as outputs under other names or a token that no embedding
has, hides no other. An honest prover posts only calls that its graph takes (`require_disputable`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tallystick.audits.inference import Calls
from tallystick.disputes.evidence.claimed_run import ClaimedCalls
from tallystick.disputes.evidence.doubts import MARGIN
from tallystick.disputes.evidence.drift import Leeway, deviation
from tallystick.disputes.evidence.locate import ChallengerWork
from tallystick.disputes.game.protocols import Doubt
from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.graphs.derive import Deriver, operand_of
from tallystick.graphs.engine import Arguments, Engine
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Node, Ref
from tallystick.graphs.reference import Reference
from tallystick.judging.leaf.request import LeafLimits
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.record import CallRecord
from tallystick.workloads.names import BATCH


def doubt_calls(held: ClaimedCalls, engine: Engine, work: ChallengerWork) -> Doubt | None:
    """The first call that is wrong; `None` where none is.

    A call that does not run here is doubted where the definition of an operator refuses its operands, or where other
    calls of the same graph run. Raises `UnavailableError` where none runs.
    """
    stuck = list[tuple[int, UnavailableError]]()
    replay = _Replay(held.calls, engine)
    for place, record in enumerate(held.calls.records):
        try:
            reason = replay.objection(record)
        except UnavailableError as error:
            stuck.append((place, error))
            continue
        work.replayed += 1
        if reason:
            return Doubt(place, place + 1, f"call {record.index}: {reason}")
    return _stuck(stuck, len(held.calls.records)) if stuck else None


def require_disputable(calls: Calls) -> None:
    """Raise `UsageError` where a call has other inputs or outputs than its graph: nobody could open its operators."""
    graph = calls.graph
    specs = graph.specs()
    taken = {each.name: each.spec for each in graph.inputs if each.name.startswith(BATCH)}
    given = {output.name: specs[output.value] for output in graph.outputs}
    for record in calls.records:
        inputs = {f"{BATCH}{name}": TensorSpec.of(tensor) for name, tensor in calls.inputs(record).items()}
        outputs = {name: TensorSpec.of(tensor) for name, tensor in calls.outputs(record).items()}
        if odd := _difference(inputs, taken) or _difference(outputs, given):
            line = (
                f"call {record.index} cannot be disputed: {odd}; record calls of each shape in a directory of their own"
            )
            raise UsageError(f"{calls.run.path}: {line}")


def _stuck(stuck: list[tuple[int, UnavailableError]], records: int) -> Doubt:
    place, error = stuck[0]
    if len(stuck) == records:
        raise error
    return Doubt(place, place + 1, f"call {place + 1}, unlike others: {error}")


def _difference(found: Mapping[str, TensorSpec], wanted: Mapping[str, TensorSpec]) -> str:
    """Where recorded tensors are not those of the graph; empty if they are."""
    names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    return f"{names[0]} is {found.get(names[0])}, and {wanted.get(names[0])} in the graph" if names else ""


@dataclass(frozen=True)
class _Replay:
    """Replays calls one by one."""

    calls: Calls
    engine: Engine

    def objection(self, record: CallRecord) -> str:
        """What is wrong with a call; empty if nothing is. Raises `UnavailableError` where it does not run here."""
        inputs = {f"{BATCH}{name}": tensor for name, tensor in self.calls.inputs(record).items()}
        try:
            replayed = execute(self.calls.graph, {**self._held, **inputs}, self._defined)
        except MalformedError as error:
            return f"the graph does not take it: {error}"
        recorded = self.calls.outputs(record)
        if odd := sorted(replayed.keys() ^ recorded.keys()):
            return f"{odd[0]} is {'not recorded' if odd[0] in replayed else 'no output of the graph'}"
        far = {name: self._deviation(name, recorded[name], own) for name, own in replayed.items()}
        return next((f"{name} is off by {far[name]:.3g} tolerances" for name in sorted(far) if far[name] > MARGIN), "")

    def _deviation(self, name: str, recorded: Tensor, own: Tensor) -> float:
        return deviation(recorded, own, self._leeway, self._given[name])

    @cached_property
    def _held(self) -> State:
        return {**self.calls.constants, **self.calls.weights()}

    @cached_property
    def _specs(self) -> Mapping[Ref, TensorSpec]:
        return self.calls.graph.specs()

    @cached_property
    def _leeway(self) -> Leeway:
        return Leeway.of(self.calls.graph.nodes, self._specs)

    @cached_property
    def _given(self) -> Mapping[str, Ref]:
        return {output.name: output.value for output in self.calls.graph.outputs}

    @cached_property
    def _defined(self) -> Engine:
        return _Defined(self.engine, self._specs)


@dataclass(frozen=True)
class _Defined:
    """An engine that asks the definition of an operator that does not run: what it refuses is a `MalformedError`."""

    engine: Engine
    specs: Mapping[Ref, TensorSpec]

    @property
    def name(self) -> str:
        return self.engine.name

    def load(self, tensor: Tensor) -> Any:
        return self.engine.load(tensor)

    def unload(self, array: Any, dtype: str) -> Tensor:
        return self.engine.unload(array, dtype)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        run = self.engine.prepare(node)

        def guarded(arguments: Arguments) -> tuple[Any, ...]:
            try:
                return run(arguments)
            except UnavailableError:
                self._define(node, arguments)
                raise

        return guarded

    def _define(self, node: Node, arguments: Arguments) -> None:
        if LeafLimits().are_passed_by(Deriver()(node, self.specs)):
            return
        reference = Reference()
        values = {
            ref: reference.load(self.engine.unload(array, self.specs[ref].dtype))
            for ref, array in _held(node, arguments)
        }
        reference.prepare(node)({name: operand_of(operand, values) for name, operand in node.operands.items()})


def _held(node: Node, arguments: Arguments) -> list[tuple[Ref, Any]]:
    """The arrays that a node reads, by reference."""
    found = list[tuple[Ref, Any]]()
    for name, operand in node.operands.items():
        refs, arrays = (operand, arguments[name]) if isinstance(operand, tuple) else ((operand,), (arguments[name],))
        found += [(ref, array) for ref, array in zip(refs, arrays, strict=True) if ref is not None]
    return found
