"""A trace of a few lines to change: two GPUs in two hosts, and how to write the folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallystick.audits.timeline.audit import AuditedTrace, open_trace
from tallystick.core.tensors import TensorSpec
from tallystick.formats.cluster import Cluster, Device, Link
from tallystick.formats.store.traces import EMPTY, TraceEvent, TraceFolder, TraceStatement, write_trace
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import save_program
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role

ONE, TWO = "node1/gpu0", "node2/gpu0"


def two_nodes() -> Cluster:
    """Two hosts with one GPU each, 1000 bytes, 10 operations and 100 bytes a nanosecond, behind one switch."""
    hosts = [Device(name=name, kind="host") for name in ("node1", "node2")]
    gpus = [
        Device(name=name, kind="gpu", memory=1000, bandwidth=10**11, peak={"F32": 10**10}, host=name[:5])
        for name in (ONE, TWO)
    ]
    links = [Link(ends=(host.name, "rack"), bandwidth=10**10, latency=1e-6) for host in hosts]
    return Cluster.of([*hosts, *gpus, Device(name="rack", kind="switch")], links)


def kernel(start: int, duration: int, **fields: Any) -> TraceEvent:
    """A kernel on the first GPU, stream 7, unless `fields` say otherwise."""
    given = {"kind": "kernel", "device": ONE, "name": "k", "stream": 7, "start": start, "duration": duration}
    return TraceEvent(**{**given, **fields})


def reduction(device: str, start: int, duration: int, **fields: Any) -> TraceEvent:
    """One member's part of a collective of both GPUs."""
    given = {"kind": "collective", "name": "all_reduce", "members": (ONE, TWO), "moved": 100, "device": device}
    return kernel(start, duration, **{**given, "stream": 20, **fields})


def trace_at(folder: Path, events: Iterable[TraceEvent], cluster: Cluster | None = None, **header: Any) -> TraceFolder:
    """The events as a trace in `folder`."""
    cluster = cluster or two_nodes()
    fields = {"clock": "test", "source": "test", "cluster": cluster.identity, "events": EMPTY, **header}
    write_trace(folder, TraceStatement(**fields), cluster, events)
    return TraceFolder(folder)


def small_graph() -> Graph:
    """Four operators: a product, its ReLU, a product with that, and a view that no device runs."""
    spec = TensorSpec("F32", (4, 4))

    def node(number: int, operator: str, operands: dict[str, str], **attributes: Any) -> Node:
        return Node(number, operator, operands, attributes, (spec,))

    inputs = (Input("inputs.x", Role.INPUT, spec), Input("weights.w", Role.WEIGHT, spec))
    nodes = (
        node(0, "aten.mm.default", {"self": "inputs.x", "mat2": "weights.w"}),
        node(1, "aten.relu.default", {"self": "n0"}),
        node(2, "aten.t.default", {"self": "weights.w"}),
        node(3, "aten.mm.default", {"self": "n1", "mat2": "n2"}),
    )
    return Graph("aten", GraphForm.LOGICAL, inputs, (), nodes, (Output("y", "n3"),))


def honest_events() -> list[TraceEvent]:
    """Two steps of the small graph on the first GPU, a collective after each, and an anchor."""
    events = []
    for step in (1, 2):
        at = step * 1_000_000
        events += [
            kernel(at, 10_000, operator=0, step=step, memory=400),
            kernel(at + 20_000, 5_000, operator=1, step=step),
            kernel(at + 30_000, 10_000, operator=3, step=step),
            reduction(ONE, at + 50_000, 20_000, step=step),
            reduction(TWO, at + 51_000, 20_000, step=step),
        ]
    return [*events, kernel(3_000_000, 100, kind="checkpoint", stream=None, step=2)]


def two_products() -> Graph:
    """Two products that do not depend on each other."""
    small = small_graph()
    first = small.nodes[0]
    return replace(small, nodes=(first, replace(first, number=1)), outputs=(Output("y", "n0"), Output("z", "n1")))


def traced(
    folder: Path, events: Iterable[TraceEvent], cluster: Cluster | None = None, graph: Graph | None = None
) -> AuditedTrace:
    """A trace of the small graph or another one, with its graph beside it, ready to be audited."""
    graph = graph or small_graph()
    file = save_program(folder / "graph", graph, {})
    return open_trace(trace_at(folder / "trace", events, cluster, graph=graph_root(graph)), file)
