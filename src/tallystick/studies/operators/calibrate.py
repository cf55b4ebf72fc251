"""Calibrates the operators of a graph: every stack of this machine on every set of inputs, and one stack left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tallystick.commitments import Digest
from tallystick.errors import UnavailableError
from tallystick.graphs import Graph, graph_root, load_program
from tallystick.graphs.values import float_results
from tallystick.studies.calibrate import machine
from tallystick.studies.operators.errors import DIFFERS, Table
from tallystick.studies.operators.stacks import BASE, base_engine, stacks_here
from tallystick.studies.operators.traces import input_sets, write_traces
from tallystick.studies.processes import Task, run_all
from tallystick.tensors import read_state
from tallystick.tolerances.threshold import NO_ERRORS, SAFETY, Errors, Threshold
from tallystick.transcripts.profile import Calibrated, Profile

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """How far one stack lay from the exact results: for each result F64[runs, 20] (see `studies.operators.errors`).

    `skipped` names the results that the stack could not compute, with the reason.
    """

    stack: str
    tables: Mapping[str, Table]
    skipped: Mapping[str, str]

    def errors(self, result: str, runs: slice = slice(None)) -> Errors:
        """The largest errors of one result in some of the runs."""
        rows = self.tables[result][runs, :DIFFERS]
        return Errors.of(rows.max(axis=0)) if len(rows) else NO_ERRORS

    @property
    def differs(self) -> float:
        """The share of results that have other bits than those of the first stack."""
        columns = [table[:, DIFFERS] for table in self.tables.values()]
        return float(np.concatenate(columns).mean()) if columns else 0.0


@dataclass(frozen=True)
class LeftOut:
    """Honest runs on a stack that was not calibrated on, with inputs that were not either: how many were rejected.

    `used` is, for each run, the largest share of its threshold that any of the `results` took; `where` names the
    operator that took the most of all. `skipped` results could not be computed on this stack.
    """

    stack: str
    rejected: int
    results: int
    skipped: int
    differs: float
    used: tuple[float, ...]
    where: str


@dataclass(frozen=True)
class OperatorStudy:
    """What a calibration found."""

    graph: Graph
    root: Digest
    runs: int
    measured: tuple[Measured, ...]
    profile: Profile
    left_out: tuple[LeftOut, ...]


def calibrate_graph(program: Path, inputs: Path, folder: Path, tell: Tell = print) -> OperatorStudy:
    """Measure every operator of a program on every stack.

    Raises:
        UsageError: there is no set of inputs.
        MalformedError: a set of inputs does not fit the graph.
        UnavailableError: PyTorch is not here, a stack failed, or one lies outside an operator's bound.
    """
    engine = base_engine()
    graph, constants = load_program(program)
    shared, sets = input_sets(graph, constants, inputs)
    tell(f"{len(sets)} sets of inputs, {len(graph.nodes)} operators")
    traces = folder / "traces"
    blocks = [str(block) for block in write_traces(graph, shared, sets, engine, traces)]
    job = {"program": str(program.resolve()), "traces": str(traces), "blocks": blocks}
    tasks = [Task("operators.errors", stack, f"{stack.name} errors", job) for stack in stacks_here()]
    tell(f"every value kept; now {len(tasks)} stacks")
    measured = tuple(
        _measured(task.stack.name, found) for task, (found,) in zip(tasks, run_all(folder, tasks), strict=True)
    )
    profile = profile_of(graph, measured, len(sets))
    return OperatorStudy(graph, graph_root(graph), len(sets), measured, profile, tuple(leave_out(graph, measured)))


def profile_of(graph: Graph, measured: tuple[Measured, ...], runs: int, safety: float = SAFETY) -> Profile:
    """The profile that all measurements together give; raises `UnavailableError` where a stack left a bound."""
    root, kinds = graph_root(graph), _kinds(graph)
    by_result = {result: _joined(one.errors(result) for one in measured if result in one.tables) for result in kinds}
    for result, errors in by_result.items():
        if not errors.share[-1] <= 1.0:
            raise UnavailableError(f"{kinds[result]} n{result}: a stack lies {errors.share[-1]:.3g} bounds away")
    by_kind = {
        kind: _joined(by_result[result] for result in by_result if kinds[result] == kind) for kind in set(kinds.values())
    }
    return Profile(
        graphs=(root,),
        stacks=tuple(sorted(one.stack for one in measured)),
        machines=(machine(),),
        inputs=runs,
        safety=safety,
        nodes={root: {name: Calibrated.of(errors) for name, errors in by_result.items()}},
        operators={name: Calibrated.of(by_kind[name]) for name in sorted(by_kind)},
    )


def leave_out(graph: Graph, measured: tuple[Measured, ...], safety: float = SAFETY) -> Iterator[LeftOut]:
    """For each stack: calibrate on the others with every second set of inputs, judge it on the remaining sets."""
    kinds = _kinds(graph)
    for left in measured:
        others = [one for one in measured if one is not left]
        used = {result: _used(result, left, others, safety) for result in left.tables}
        worst = np.max(list(used.values()), axis=0) if used else np.empty(0)
        where = max(used, key=lambda result: used[result].max(initial=0.0), default="")
        yield LeftOut(
            left.stack,
            int(np.count_nonzero(worst > 1.0)),
            len(used),
            len(left.skipped),
            left.differs,
            tuple(worst.tolist()),
            f"n{where} {kinds[where]}" if where else "",
        )


KNOWN: Final = slice(0, None, 2)
UNSEEN: Final = slice(1, None, 2)


def _used(result: str, left: Measured, others: Iterable[Measured], safety: float) -> Table:
    """In each unseen run, the share of the threshold that the result took."""
    threshold = Threshold(_joined(one.errors(result, KNOWN) for one in others if result in one.tables), safety)
    rows = left.tables[result][UNSEEN, :DIFFERS]
    return np.array([threshold.judge(Errors.of(row)).distance for row in rows])


def _kinds(graph: Graph) -> dict[str, str]:
    """The operator and dtype of every floating-point result."""
    return {ref[1:]: f"{node.operator} {spec.dtype}" for node in graph.nodes for ref, spec in float_results(node)}


def _joined(errors: Iterable[Errors]) -> Errors:
    rows = [one.row() for one in errors]
    return Errors.of(np.max(rows, axis=0)) if rows else NO_ERRORS


def _measured(stack: str, found: Mapping[str, Any]) -> Measured:
    tables = {result: tensor.array() for result, tensor in read_state(Path(found["tables"])).items()}
    return Measured(stack, tables, found["skipped"])
