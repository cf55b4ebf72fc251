"""Calibrates the operators of a graph on every stack of this machine, and the figures of the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import numpy as np

from tallystick.core.canonical_json import Json
from tallystick.core.digests import Digest
from tallystick.core.safetensors import read_state
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import load_program
from tallystick.programs.graph import Graph, float_results
from tallystick.programs.operators.precision import FORMATS
from tallystick.tally.calibration.operator_runs import (
    DIFFERS,
    Block,
    Table,
    base_engine,
    input_sets,
    read_run,
    write_traces,
)
from tallystick.tally.calibration.stacks import OPERATOR_STACKS, StackJob, Tell, machine, run_all, stacks_here
from tallystick.verdicts.bounds import NO_ERRORS, QUANTILES, SAFETY, Errors, Threshold, join, rounding_errors
from tallystick.verdicts.evidence import clopper_pearson
from tallystick.verdicts.opening.budget import Accumulated, budget_of
from tallystick.verdicts.profiles import Budget, Calibrated, Profile

# Calibrates the operators of a graph on every stack of this machine, and checks the result with stacks left out.


@dataclass(frozen=True)
class StackMeasurement:
    """How far one stack lies from the exact results: F64[runs, 20] for each (see `operator_runs.measure_errors`).

    `skipped` has the reason for each result that the stack could not compute. Results outside of the proven bound are
    not in `tables` but in `beyond`, with their distance ÷ bound.
    """

    stack: str
    tables: Mapping[str, Table]
    skipped: Mapping[str, str]
    beyond: Mapping[str, float]

    def errors(self, result: str, runs: slice = slice(None)) -> Errors:
        """The largest errors of one result in some of the runs."""
        rows = self.tables[result][runs, :DIFFERS]
        return Errors.of(rows.max(axis=0)) if len(rows) else NO_ERRORS

    @property
    def differs(self) -> float:
        """The share of results whose bits differ from those of the base run."""
        columns = [table[:, DIFFERS] for table in self.tables.values()]
        return float(np.concatenate(columns).mean()) if columns else 0.0


@dataclass(frozen=True)
class LeftOut:
    """How many honest runs were rejected on a stack and on inputs that were left out of the calibration.

    `alike` are the stacks with the same errors almost everywhere; they were left out together. `stretch` has for each
    run the largest error of any of the `results`, as a multiple of the largest calibrated one. A larger safety factor
    accepts the run. `where` names the operator with the largest stretch. `skipped` results could not be computed on
    this stack. Results `beyond` the proven bound are outside of any threshold. The runs contain neither of these.
    """

    stack: str
    alike: tuple[str, ...]
    rejected: int
    results: int
    skipped: int
    beyond: Mapping[str, float]
    differs: float
    stretch: tuple[float, ...]
    where: str


@dataclass(frozen=True)
class OperatorStudy:
    """The measurements of a calibration, the profile from them, and its check with stacks left out."""

    graph: Graph
    root: Digest
    runs: int
    measured: tuple[StackMeasurement, ...]
    rounding: StackMeasurement
    profile: Profile
    left_out: tuple[LeftOut, ...]


def calibrate_graph(program: Path, inputs: Path, folder: Path, tell: Tell = print) -> OperatorStudy:
    """Measure every operator of a program on every stack.

    Raises:
        UsageError: there is no set of inputs.
        MalformedError: a set of inputs does not fit the graph.
        UnavailableError: PyTorch is not installed, or a stack failed.
    """
    engine = base_engine()
    graph, constants = load_program(program)
    shared, sets = input_sets(graph, constants, inputs)
    tell(f"{len(sets)} sets of inputs, {len(graph.nodes)} operators")
    traces = folder / "traces"
    blocks = list(write_traces(graph, shared, sets, engine, traces))
    job = {"program": str(program.resolve()), "traces": str(traces), "blocks": [str(block) for block in blocks]}
    measuring = "tallystick.tally.calibration.operator_runs:measure_errors"
    tasks = [StackJob(measuring, stack, f"{stack.name} errors", job) for stack in stacks_here(OPERATOR_STACKS)]
    tell(f"every value kept; now {len(tasks)} stacks")
    measured = tuple(
        _measured(task.stack.name, result) for task, (result,) in zip(tasks, run_all(folder, tasks), strict=True)
    )
    rounding = one_rounding(graph, blocks)
    profile = profile_of(graph, measured, rounding, len(sets))
    left_out = tuple(leave_out(graph, measured, rounding))
    return OperatorStudy(graph, graph_root(graph), len(sets), measured, rounding, profile, left_out)


def calibrate_budget(program: Path, inputs: Path, folder: Path, tell: Tell = print) -> Budget:
    """Run a whole program on every stack, and return limits for the accumulated errors of an honest run.

    Raises as `calibrate_graph` does, and `MalformedError` if the results of a stack are not numbers.
    """
    base_engine()
    graph, _ = load_program(program)
    job = {"program": str(program.resolve()), "inputs": str(inputs.resolve())}
    running = "tallystick.tally.calibration.operator_runs:whole_runs"
    tasks = [StackJob(running, stack, f"{stack.name} whole", job) for stack in stacks_here(OPERATOR_STACKS)]
    tell(f"whole runs on {len(tasks)} stacks")
    runs: list[Accumulated] = []
    stacks: list[str] = []
    for task, rows in zip(tasks, run_all(folder, tasks), strict=True):
        if "skipped" in rows[0]:
            tell(f"{task.stack.name}: {rows[0]['skipped']}")
        else:
            runs += map(read_run, rows)
            stacks.append(task.stack.name)
    return budget_of(graph_root(graph), runs, stacks=stacks, machines=(machine(),))


def one_rounding(graph: Graph, blocks: Iterable[Path]) -> StackMeasurement:
    """The errors of results that are exact except for their final rounding; every threshold allows at least these."""
    tables: dict[str, list[Table]] = {}
    for block in map(Block, blocks):
        for node in graph.nodes:
            for ref, spec in float_results(node):
                unit = FORMATS[spec.dtype].unit
                rows = [rounding_errors(*reference, unit).row() for reference in block.references(ref)]
                tables.setdefault(ref[1:], []).append(np.array(rows))
    return StackMeasurement("one rounding", {result: np.concatenate(rows) for result, rows in tables.items()}, {}, {})


def profile_of(
    graph: Graph, measured: tuple[StackMeasurement, ...], rounding: StackMeasurement, runs: int, safety: float = SAFETY
) -> Profile:
    """The profile from all measurements together."""
    root, kinds = graph_root(graph), _kinds(graph)
    by_result = {result: _calibrated(result, (rounding, *measured), slice(None)) for result in kinds}
    by_kind = {
        kind: join(by_result[result] for result in by_result if kinds[result] == kind) for kind in set(kinds.values())
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


def leave_out(
    graph: Graph, measured: Iterable[StackMeasurement], rounding: StackMeasurement, safety: float = SAFETY
) -> Iterator[LeftOut]:
    """For each group of alike stacks: calibrate on the others with half of the inputs, judge it on the other half."""
    kinds = _kinds(graph)
    groups = _alike(measured)
    for group in groups:
        left = group[0]
        others = [rounding, *(one for other in groups if other is not group for one in other)]
        calibrated = {result: _calibrated(result, others, KNOWN) for result in left.tables}
        used, stretch = (_used(left, calibrated, factor) for factor in (safety, 1.0))
        where = max(stretch, key=lambda result: stretch[result].max(initial=0.0), default="")
        yield LeftOut(
            left.stack,
            tuple(one.stack for one in group[1:]),
            int(np.count_nonzero(_worst(used) > 1.0)),
            len(used),
            len(left.skipped),
            {f"n{result} {kinds[result]}": distance for result, distance in left.beyond.items()},
            left.differs,
            tuple(_worst(stretch).tolist()),
            f"n{where} {kinds[where]}" if where else "",
        )


REPEATS: Final = 0.98
LARGEST: Final = QUANTILES.index(1.0)
KNOWN: Final = slice(0, None, 2)
UNSEEN: Final = slice(1, None, 2)


def _alike(measured: Iterable[StackMeasurement]) -> list[list[StackMeasurement]]:
    """Group stacks with equal errors almost everywhere: if one is left out, its copies must be left out too."""
    groups: list[list[StackMeasurement]] = []
    for one in measured:
        home = next((group for group in groups if _repeats(one, group[0])), None)
        groups.append([one]) if home is None else home.append(one)
    return groups


def _repeats(one: StackMeasurement, other: StackMeasurement) -> bool:
    """Whether errors are equal in almost all cases; even the same kernels may differ in bits by memory alignment."""
    if one.tables.keys() != other.tables.keys():
        return False
    same = [np.all(table == other.tables[result], axis=1)[:, None] for result, table in one.tables.items()]
    return bool(np.concatenate(same).mean() >= REPEATS)


def _calibrated(result: str, measured: Iterable[StackMeasurement], runs: slice) -> Errors:
    return join(one.errors(result, runs) for one in measured if result in one.tables)


def _used(left: StackMeasurement, calibrated: Mapping[str, Errors], safety: float) -> dict[str, Table]:
    """For each result and each unseen run: error ÷ threshold."""
    rows = {result: [Errors.of(row[:DIFFERS]) for row in left.tables[result][UNSEEN]] for result in calibrated}
    return {
        result: np.array([Threshold(errors, safety).judge(row).distance for row in rows[result]])
        for result, errors in calibrated.items()
    }


def _worst(used: Mapping[str, Table]) -> Table:
    return np.max(list(used.values()), axis=0) if used else np.empty(0)


def _kinds(graph: Graph) -> dict[str, str]:
    """The operator and dtype of every floating-point result."""
    return {ref[1:]: f"{node.operator} {spec.dtype}" for node in graph.nodes for ref, spec in float_results(node)}


def _measured(stack: str, result: Mapping[str, Any]) -> StackMeasurement:
    tables = {name: tensor.array() for name, tensor in read_state(Path(result["tables"])).items()}
    largest = {name: float(table[:, LARGEST].max()) for name, table in tables.items()}
    beyond = {name: share for name, share in largest.items() if not share <= 1.0}
    within = {name: table for name, table in tables.items() if name not in beyond}
    return StackMeasurement(stack, within, result["skipped"], beyond)


# The figures of a calibration: the errors of each operator, and the results of stacks left out.

SAFETIES: Final = (1.0, 1.25, 1.5, 2.0, 3.0)


def figures_of(study: OperatorStudy) -> dict[str, Json]:
    """All figures of the page, as JSON values."""
    profile = study.profile
    return {
        "graph": study.root,
        "operators": len(study.graph.nodes),
        "machines": list(profile.machines),
        "inputs": profile.inputs,
        "safety": profile.safety,
        "quantiles": list(QUANTILES),
        "stacks": [
            {
                "stack": one.stack,
                "differs": one.differs,
                "results": len(one.tables),
                "skipped": dict(one.skipped),
                "beyond": dict(one.beyond),
            }
            for one in study.measured
        ],
        "kinds": list(_figure_kinds(study)),
        "left_out": [_left_out(row) for row in study.left_out],
        "safeties": [_at(study, safety) for safety in SAFETIES],
    }


def _figure_kinds(study: OperatorStudy) -> Iterator[Json]:
    """Per operator: results, the largest errors, and how many times tighter the thresholds are than the bound."""
    safety, kinds = study.profile.safety, _kinds(study.graph)
    for kind, largest in study.profile.operators.items():
        entries = [entry for result, entry in study.profile.nodes[study.root].items() if kinds[result] == kind]
        tighter, median = _tighter(entries, safety), _tighter(entries, safety, QUANTILES.index(0.5))
        yield {
            "operator": kind,
            "nodes": len(entries),
            "exact": len(entries) - len(tighter),
            "share": list(largest.share),
            "absolute": largest.absolute[-1],
            "relative_p99": largest.relative[2],
            "ulp_p50": largest.ulp[0],
            "ulp_p99": largest.ulp[2],
            "ulp": largest.ulp[-1],
            "tighter": geometric_mean(tighter) if tighter else None,
            "tighter_p50": geometric_mean(median) if median else None,  # limits who changes every element
        }


def _tighter(entries: Iterable[Calibrated], safety: float, place: int = -1) -> list[float]:
    """How many times tighter thresholds are than the bound at one percentile, without those that allow nothing."""
    shares = [Threshold(entry.errors(), safety).allowed()[place] for entry in entries]
    return [1.0 / share for share in shares if share > 0]


def _left_out(row: LeftOut) -> Json:
    runs = len(row.stretch)
    low, high = clopper_pearson(row.rejected, runs) if runs else (0.0, 1.0)
    stretch = np.quantile(row.stretch, (0.5, 0.99, 1.0), method="higher") if runs else np.zeros(3)
    return asdict(row) | {
        "alike": list(row.alike),
        "runs": runs,
        "rate_low": low,
        "rate_high": high,
        "stretch": [float(multiple) if np.isfinite(multiple) else None for multiple in stretch],
    }


def _at(study: OperatorStudy, safety: float) -> Json:
    """The rejected runs, and the tightness of the thresholds, at another safety factor."""
    rows = list(leave_out(study.graph, study.measured, study.rounding, safety))
    tighter = _tighter(study.profile.nodes[study.root].values(), safety)
    return {
        "safety": safety,
        "runs": sum(len(row.stretch) for row in rows),
        "rejected": sum(row.rejected for row in rows),
        "tighter": geometric_mean(tighter) if tighter else None,
    }
