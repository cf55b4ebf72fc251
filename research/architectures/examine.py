"""One subject examined: the strict door, replay bit by bit, slices, other engines, and every operator judged.

Nothing here raises for a finding: what is wrong stands in `Examination.failures`, what is refused with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from research.architectures.distances import Distance, distance, vanishing
from research.architectures.engines import ENGINES, engine_of
from research.architectures.judging import Judgement, judge_all
from research.architectures.slices import Examples, Slice, isolate, middle_slice, run_slice
from research.architectures.subjects import Subject
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.tensors import State, Tensor
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import graph_bytes, graph_root
from tallystick.programs.execution import Engine, execute
from tallystick.programs.graph import Graph, Ref
from tallystick.programs.inspection import Inspection
from tallystick.tally.calibration.operator_runs import all_values

AGREEMENT: Final = 1e-3
"""What other engines may be off in loss and outputs, relative to the largest element: more is no rounding any more."""

NATIVE_BITS: Final = "native bits"
LOOPED: Final = (
    "XLA rounds a loop otherwise than its unrolled graph; a loop with `unroll=True` gives the bits of the graph"
)


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
    slice: Slice | None = None
    examples: Examples | None = None
    refused: dict[str, str] = field(default_factory=dict)
    distances: dict[str, Distance] = field(default_factory=dict)
    judged: dict[str, Judgement] = field(default_factory=dict)
    vanishing: tuple[str, ...] = ()
    failures: list[str] = field(default_factory=list)


def examine(subject: Subject, engines: tuple[str, ...] = ENGINES) -> Examination:
    """All checks of one subject, on these engines and the reference."""
    found = _inspected(subject)
    found.failures += door(subject.graph, "the door")
    _replay(subject, found)
    exact = execute(subject.graph, subject.bindings, engine_of("reference"))
    found.vanishing = vanishing(exact)
    found.distances["reference"] = distance(exact, subject.native, found.vanishing)
    for name in engines:
        try:
            _run_on(name, subject, found)
        except UnavailableError as error:
            found.refused[name] = str(error)
    found.failures += [f"{name}: {_too_far(d.observed)}" for name, d in found.distances.items() if _too_far(d.observed)]
    return found


def refused(architecture: str, part: str, reason: str) -> Examination:
    """What cannot be captured: a row without a graph."""
    return Examination(architecture, part, 0, {}, 0, 0, 0, "", refused={"capture": reason})


def _inspected(subject: Subject) -> Examination:
    graph, seen = subject.graph, Inspection(subject.graph)
    counts = (len(graph.nodes), seen.kinds, len(seen.operators), seen.depth, seen.flops)
    return Examination(subject.architecture, subject.part, *counts, str(graph_root(graph)))


def door(graph: Graph, what: str) -> list[str]:
    """Why the strict reader refuses a graph, if it does."""
    try:
        read = read_graph(graph_bytes(graph))
    except MalformedError as error:
        return [f"{what}: {error}"]
    return [] if graph_root(read) == graph_root(graph) else [f"{what}: another graph comes out than went in"]


def replay(subject: Subject) -> list[str]:
    """The whole graph compiled by its own framework has to give the bits of the native run."""
    outputs = _compiled(subject)
    differing = [name for name, tensor in subject.native.items() if outputs[name] != tensor]
    return [f"replay: {len(differing)} outputs with other bits, first {differing[0]}"] if differing else []


def _replay(subject: Subject, found: Examination) -> None:
    """Other bits are a failure, but where XLA compiled a loop and has to compile its unrolled graph."""
    lines = replay(subject)
    if lines and subject.looped:
        found.refused[NATIVE_BITS] = f"{lines[0].removeprefix('replay: ')}: {LOOPED}"
    else:
        found.failures += lines


def _compiled(subject: Subject) -> State:
    if subject.framework == "jax":
        from tallystick.engines.jax.engine import JaxEngine

        return JaxEngine().run(subject.graph, subject.bindings)
    from tallystick.engines.torch.engine import TorchEngine
    from tallystick.engines.torch.tensors import to_tensor

    engine = TorchEngine()
    bound = {name: engine.load(tensor) for name, tensor in subject.bindings.items()}
    return {name: to_tensor(value) for name, value in engine.compile(subject.graph)(bound).items()}


def _run_on(name: str, subject: Subject, found: Examination) -> None:
    """Every value of a run on one engine, its outputs compared and its operators judged."""
    engine = engine_of(name, subject.graph)
    values = all_values(subject.graph, subject.bindings, engine)
    outputs = {output.name: values[output.value] for output in subject.graph.outputs}
    found.distances[name] = distance(outputs, subject.native, found.vanishing)
    found.judged[name] = judge_all(subject.graph, values, name)
    found.failures += [f"{name}: {line}" for line in found.judged[name].rejected]
    if name == subject.framework:
        _take_apart(subject, values, engine, found)


def _take_apart(subject: Subject, values: Mapping[Ref, Tensor], engine: Engine, found: Examination) -> None:
    part = middle_slice(subject.graph)
    found.slice = run_slice(part, subject, values, engine)
    found.failures += door(part, "slice") + [f"slice: {line}" for line in found.slice.rejected]
    try:
        found.examples = isolate(subject, values, engine)
    except UsageError as error:
        found.refused["single examples"] = str(error)
        return
    lines = [*found.examples.rejected, *filter(None, [_too_far(found.examples.worst)])]
    found.failures += [f"single examples: {line}" for line in lines]


def _too_far(share: float) -> str:
    return "" if share <= AGREEMENT else f"{share:.2g} of the largest element away"
