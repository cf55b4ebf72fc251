"""Calibrates the operators of a graph: every stack of this machine on every set of inputs, and one stack left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.commitments import Digest
from tallystick.errors import UnavailableError, UsageError
from tallystick.graphs import Graph, graph_root, load_program
from tallystick.graphs.values import float_results
from tallystick.studies.calibrate import machine
from tallystick.studies.operators.stacks import BASE, base_engine, stacks_here
from tallystick.studies.operators.traces import input_sets, record_trace, write_references
from tallystick.studies.processes import Task, run_all
from tallystick.tensors import write_state
from tallystick.tolerances.threshold import NO_ERRORS, SAFETY, Errors, Threshold, join
from tallystick.transcripts.profile import Calibrated, Profile

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """How far one stack lay from the exact result of one operator on one set of inputs."""

    stack: str
    trace: str
    result: str
    errors: Errors


@dataclass(frozen=True)
class LeftOut:
    """Honest runs on a stack that was not calibrated on, with inputs that were not either: how many were rejected.

    `worst` is the largest share of the threshold that any operator of these runs used.
    """

    stack: str
    runs: int
    rejected: int
    operators: int
    worst: float


@dataclass(frozen=True)
class OperatorStudy:
    """What a calibration found."""

    graph: Graph
    root: Digest
    measured: tuple[Measured, ...]
    profile: Profile
    left_out: tuple[LeftOut, ...]


def calibrate_graph(program: Path, inputs: Path, folder: Path, tell: Tell = print) -> OperatorStudy:
    """Measure every operator of a program on every stack.

    Raises:
        UsageError: there is no set of inputs.
        UnavailableError: a stack failed, or lies outside an operator's bound.
    """
    graph, constants = load_program(program)
    traces = _record(graph, constants, inputs, folder, tell)
    tasks = [
        Task("operators.errors", stack, f"{stack.name} errors", {"program": str(program), "traces": traces})
        for stack in stacks_here()
    ]
    tell(f"{len(tasks)} stacks, {len(traces)} sets of inputs, {len(graph.nodes)} operators")
    found = run_all(folder, tasks)
    measured = tuple(_measured(task.stack.name, row) for task, rows in zip(tasks, found, strict=True) for row in rows)
    root = graph_root(graph)
    return OperatorStudy(graph, root, measured, profile_of(graph, root, measured), tuple(leave_out(measured)))


def profile_of(graph: Graph, root: Digest, measured: Iterable[Measured], safety: float = SAFETY) -> Profile:
    """The profile that all measurements together give; raises `UnavailableError` where a share is infinite."""
    measured = tuple(measured)
    kinds = {ref[1:]: f"{node.operator} {spec.dtype}" for node in graph.nodes for ref, spec in float_results(node)}
    by_result = _joined((row.result, row.errors) for row in measured)
    for result, errors in by_result.items():
        if not all(share <= 1.0 for share in errors.share):
            raise UnavailableError(f"{kinds[result]} n{result}: a stack lies {errors.share[-1]:.3g} bounds away")
    by_kind = _joined((kinds[result], errors) for result, errors in by_result.items())
    return Profile(
        graphs=(root,),
        stacks=tuple(sorted({row.stack for row in measured})),
        machines=(machine(),),
        inputs=len({row.trace for row in measured}),
        safety=safety,
        nodes={root: {name: Calibrated.of(errors) for name, errors in by_result.items()}},
        operators={name: Calibrated.of(errors) for name, errors in by_kind.items()},
    )


def leave_out(measured: tuple[Measured, ...], safety: float = SAFETY) -> list[LeftOut]:
    """For each stack: calibrate on the others with half of the inputs, judge it on the other half."""
    traces = sorted({row.trace for row in measured})
    known = set(traces[::2])
    return [
        _leave_out(stack, measured, known, safety) for stack in sorted({row.stack for row in measured} - {BASE.name})
    ]


def _leave_out(stack: str, measured: tuple[Measured, ...], known: set[str], safety: float) -> LeftOut:
    others = _joined((row.result, row.errors) for row in measured if row.stack != stack and row.trace in known)
    judged: dict[str, list[float]] = {}
    for row in measured:
        if row.stack == stack and row.trace not in known:
            threshold = Threshold(others.get(row.result, NO_ERRORS), safety)
            judged.setdefault(row.trace, []).append(threshold.judge(row.errors).distance)
    rejected = sum(max(distances) > 1.0 for distances in judged.values())
    operators = max((len(distances) for distances in judged.values()), default=0)
    worst = max((max(distances) for distances in judged.values()), default=0.0)
    return LeftOut(stack, len(judged), rejected, operators, worst)


def _record(graph: Graph, constants: Mapping[str, Any], inputs: Path, folder: Path, tell: Tell) -> list[str]:
    traces = []
    for name, bindings in input_sets(inputs):
        trace = record_trace(graph, {**constants, **bindings}, base_engine())
        place = folder / "traces" / name
        write_state(place / "values.safetensors", trace)
        write_references(graph, trace, place / "references.safetensors")
        traces.append(str(place))
        tell(f"{name}: {len(trace)} values kept")
    if not traces:
        raise UsageError(f"{inputs}: no *.safetensors file with a set of inputs")
    return traces


def _measured(stack: str, row: Mapping[str, Any]) -> Measured:
    errors = {name: tuple(value) if isinstance(value, list) else value for name, value in row["errors"].items()}
    return Measured(stack, row["trace"], row["result"], Errors(**errors))


def _joined(pairs: Iterable[tuple[str, Errors]]) -> dict[str, Errors]:
    groups: dict[str, list[Errors]] = {}
    for name, errors in pairs:
        groups.setdefault(name, []).append(errors)
    return {name: join(group) for name, group in groups.items()}
