"""One subject examined: the strict door, replay bit by bit, slices, other engines, and every operator judged.

Nothing here raises for a finding: what is wrong stands in `Examination.failures`, what is refused with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tallystick.attacks.inference.workload import all_values
from tallystick.audits import OperatorJudge
from tallystick.audits.findings import Findings
from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.graphs import Engine, Graph, Output, Ref, execute, graph_bytes, graph_root, read_graph
from tallystick.graphs.batching import BatchSlice, slice_batch
from tallystick.graphs.inspection import Inspection
from tallystick.graphs.slicing import verification_slice
from tallystick.studies.architectures.subjects import Subject
from tallystick.tensors import State, Tensor

ENGINES: Final = ("torch", "jax", "iree")
"""Those whose runs are judged; the reference is what they are judged by."""
AGREEMENT: Final = 1e-3
"""What other engines may be off in loss and outputs, relative to the largest element: more is no rounding any more."""
OBSERVED: Final = ("loss", "outputs.")


@dataclass(frozen=True)
class Distance:
    """How far an engine is from the framework's own results: the largest |Δ| of a tensor ÷ its largest element.

    `observed` is over loss and outputs, `worst` over every tensor; `where` names the tensor of `worst`.
    """

    observed: float
    worst: float
    where: str


@dataclass(frozen=True)
class Judgement:
    """Every operator of one run judged on the operands of that run; `share` is the most of a bound that was used."""

    operators: int
    rejected: tuple[str, ...]
    share: float
    where: str
    unbounded: tuple[str, ...]
    partly_unbounded: tuple[str, ...]


@dataclass(frozen=True)
class Examples:
    """Single examples of the batch: the most of a bound that a row of the whole run used, and |Δ| of the outputs."""

    rows: int
    nodes: int
    judged: Judgement
    worst: float


@dataclass
class Examination:
    """What came out for one architecture and one part."""

    architecture: str
    part: str
    nodes: int
    kinds: Mapping[str, int]
    operators: int
    depth: int
    flops: int
    root: str
    slice_nodes: int = 0
    examples: Examples | None = None
    refused: dict[str, str] = field(default_factory=dict)
    distances: dict[str, Distance] = field(default_factory=dict)
    judged: dict[str, Judgement] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def examine(subject: Subject, engines: tuple[str, ...] = ENGINES) -> Examination:
    """All checks of one subject, on these engines and the reference."""
    graph, inspection = subject.graph, Inspection(subject.graph)
    found = Examination(
        subject.architecture,
        subject.part,
        len(graph.nodes),
        inspection.kinds,
        len(inspection.operators),
        inspection.depth,
        inspection.flops,
        str(graph_root(graph)),
    )
    _pass_the_door(graph, found)
    _replay_bits(subject, found)
    reference = engine_of("reference")
    found.distances["reference"] = distance(execute(graph, subject.bindings, reference), subject.native)
    for name in engines:
        _run_on(name, subject, found)
    for name, each in found.distances.items():
        if not each.observed <= AGREEMENT:
            found.failures.append(f"{name}: {each.observed:.2g} of the largest element away")
    return found


def engine_of(name: str, graph: Graph | None = None) -> Engine:
    """A fresh engine, prepared for `graph` where that is faster; raises `UnavailableError` where it is not installed."""
    if name == "reference":
        from tallystick.graphs.reference import Reference

        return Reference()
    if name == "torch":
        from tallystick.frameworks.torch.engine import TorchEngine

        return TorchEngine()
    if name == "jax":
        from tallystick.frameworks.jax.engine import JaxEngine

        return JaxEngine()
    from tallystick.frameworks.iree.engine import IreeEngine

    engine = IreeEngine()
    if graph is not None:
        engine.compile(graph)
    return engine


def distance(outputs: State, native: State) -> Distance:
    """How far `outputs` are from `native`, by the tensors that both have."""
    found = {name: _relative(tensor, outputs[name]) for name, tensor in native.items()}
    where = max(found, key=lambda name: found[name])
    observed = [value for name, value in found.items() if name.startswith(OBSERVED)]
    return Distance(max(observed), found[where], where)


def judge_all(graph: Graph, values: Mapping[Ref, Tensor]) -> Judgement:
    """Judge every operator on the values of one run."""
    judge = OperatorJudge(graph_root(graph))
    rejected, unbounded, partly = [], set(), set()
    share, where = 0.0, ""
    for node in graph.nodes:
        notes = Findings()
        if judge.judge(notes, node, values):
            unbounded.add(node.operator)
        for finding in notes.seen:
            if not finding.agrees:
                rejected.append(f"{finding.where}: {finding.distance:.3g} of {finding.allowed:g} {finding.detail}")
            elif "undetermined" in finding.detail:
                partly.add(node.operator)
            if finding.distance > share:
                share, where = finding.distance, node.operator
    return Judgement(len(graph.nodes), tuple(rejected), share, where, tuple(sorted(unbounded)), tuple(sorted(partly)))


def middle_slice(graph: Graph) -> Graph:
    """What the middle third of the nodes computes: the values alive at its end from those alive at its start."""
    third = len(graph.nodes) // 3
    before, after = _alive(graph, third), _alive(graph, 2 * third)
    wanted = [ref for ref in after if ref not in before]
    return verification_slice(graph, before, wanted)


def alone(subject: Subject) -> BatchSlice:
    """The graph of a single example with every value as an output; raises `UsageError` where it is not provable."""
    every = tuple(Output(ref, ref) for node in subject.graph.nodes for ref in node.outputs if ref is not None)
    return slice_batch(Graph(**{**vars(subject.graph), "outputs": every}), subject.batched)


def _pass_the_door(graph: Graph, found: Examination) -> None:
    try:
        read = read_graph(graph_bytes(graph))
    except MalformedError as error:
        found.failures.append(f"the door: {error}")
        return
    if read != graph or graph_root(read) != graph_root(graph):
        found.failures.append("the door: another graph comes out than went in")


def _replay_bits(subject: Subject, found: Examination) -> None:
    """The whole graph compiled by its own framework, which has to give the bits of the native run."""
    if subject.framework == "jax":
        from tallystick.frameworks.jax.engine import JaxEngine

        outputs = JaxEngine().run(subject.graph, subject.bindings)
    else:
        outputs = _compiled(subject)
    differing = [name for name, tensor in subject.native.items() if outputs[name] != tensor]
    if differing:
        found.failures.append(f"replay: {len(differing)} outputs with other bits, first {differing[0]}")


def _compiled(subject: Subject) -> State:
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.frameworks.torch.state import to_tensor

    engine = TorchEngine()
    bound = {name: engine.load(tensor) for name, tensor in subject.bindings.items()}
    return {name: to_tensor(value) for name, value in engine.compile(subject.graph)(bound).items()}


def _run_on(name: str, subject: Subject, found: Examination) -> None:
    """Every value of a run on one engine, its outputs compared and its operators judged."""
    try:
        engine = engine_of(name, subject.graph)
        values = all_values(subject.graph, subject.bindings, engine)
    except UnavailableError as error:
        found.refused[name] = str(error)
        return
    outputs = {output.name: values[output.value] for output in subject.graph.outputs}
    found.distances[name] = distance(outputs, subject.native)
    found.judged[name] = judge_all(subject.graph, values)
    found.failures += [f"{name}: {line}" for line in found.judged[name].rejected]
    if name == subject.framework:
        _slice_middle(subject, values, engine, found)
        _isolate(subject, values, engine, found)


def _slice_middle(subject: Subject, values: Mapping[Ref, Tensor], engine: Engine, found: Examination) -> None:
    """The slice alone gives the bits that its values had in the whole run, and passes the door as a graph."""
    part = middle_slice(subject.graph)
    found.slice_nodes = len(part.nodes)
    if read_graph(graph_bytes(part)) != part:
        found.failures.append("slice: another graph comes out of the door than went in")
    outputs = execute(part, {**subject.bindings, **values}, engine)
    differing = [ref for ref, tensor in outputs.items() if tensor != values[ref]]
    if differing:
        found.failures.append(f"slice: {len(differing)} values with other bits, first {differing[0]}")


def _isolate(subject: Subject, values: Mapping[Ref, Tensor], engine: Engine, found: Examination) -> None:
    """Every row of the batch: its share of the whole run judged as a run of its own, and replayed alone."""
    try:
        single = alone(subject)
    except UsageError as error:
        found.refused["single examples"] = str(error)
        return
    judged, worst = [], 0.0
    for row, bindings in enumerate(single.split(subject.bindings)):
        rows = single.examples(values, row)
        judged.append(judge_all(single.graph, {**bindings, **rows}))
        replayed = execute(single.graph, bindings, engine)
        given = [output.value for output in subject.graph.outputs if output.value in rows]
        worst = max([worst, *(_relative(rows[ref], replayed[ref]) for ref in given)])
    widest = max(judged, key=lambda each: each.share)
    found.examples = Examples(single.size, len(single.graph.nodes), widest, worst)
    found.failures += [f"single examples: {line}" for each in judged for line in each.rejected]
    if not worst <= AGREEMENT:
        found.failures.append(f"single examples: {worst:.2g} of the largest element away")


def _alive(graph: Graph, number: int) -> list[Ref]:
    """The values that the first `number` nodes give and that later nodes or the outputs read."""
    before, after = graph.nodes[:number], graph.nodes[number:]
    read = {ref for node in after for ref in node.refs} | {output.value for output in graph.outputs}
    return [ref for node in before for ref in node.outputs if ref is not None and ref in read]


def _relative(expected: Tensor, found: Tensor) -> float:
    """The largest |Δ| over the largest finite magnitude; 0 where equal, infinite where only one of them is finite."""
    x, y = (_floats(tensor) for tensor in (expected, found))
    if x.shape != y.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        away = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    largest = np.max(np.abs(x[np.isfinite(x)]), initial=0.0)
    return float(np.max(np.nan_to_num(away, nan=np.inf, posinf=np.inf), initial=0.0) / (largest or 1.0))


def _floats(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return tensor.values().astype(np.float64)
