"""Audits a reported trace: one pass over its events, against the devices and the graph that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.audits.timeline.comparisons import Comparing
from tallystick.audits.timeline.durations import Durations, Excess
from tallystick.audits.timeline.graph_work import GraphWork
from tallystick.audits.timeline.limits import DEFAULT, TraceLimits
from tallystick.audits.timeline.steps import TracedSteps
from tallystick.audits.timeline.streams import Streams
from tallystick.audits.timeline.transfers import Transfers
from tallystick.documents.files import read_document
from tallystick.errors import ProofError
from tallystick.graphs.document import document_root
from tallystick.graphs.files import load_graph
from tallystick.graphs.graph import Graph
from tallystick.graphs.limits import GraphLimits
from tallystick.graphs.root import graph_root
from tallystick.judging.verdict import Verdict, VerdictCoverage
from tallystick.store.traces import TraceFolder
from tallystick.tolerances.tolerance import Finding
from tallystick.traces.cluster import Cluster
from tallystick.traces.statement import TraceStatement
from tallystick.transcripts.claim import Claim

ASSUMED: Final = (
    "the times are those of the prover's clock: a trace that was made up can agree with itself throughout",
    "the devices are as the prover states them",
    "the values that operators computed are no part of a trace: `tally audit` replays them",
)


@dataclass(frozen=True)
class AuditedTrace:
    """A trace, the graph that it names, and the run it stands in, as far as they are there."""

    folder: TraceFolder
    graph: Graph | None
    missing: str = ""
    run: Path | None = None


def open_trace(folder: TraceFolder, graph: Path | None = None) -> AuditedTrace:
    """The trace with its graph: the file given, or the one in the run directory around it.

    Raises `ProofError` where the file given holds another graph, `MalformedError` where it holds none.
    """
    statement = folder.statement()
    run = folder.path.resolve().parent.parent
    run_of = run if (run / "claim.json").is_file() and folder.path.resolve().parent.name == "traces" else None
    if statement.graph is None:
        return AuditedTrace(folder, None, "operators: trace.json names no graph", run_of)
    path = graph or _find_graph(run_of, statement)
    if path is None:
        return AuditedTrace(folder, None, "operators: the graph is not here; name its file with --graph", run_of)
    found = load_graph(path)
    if graph_root(found) != statement.graph:
        raise ProofError(f"{path.name} is not the graph that trace.json names")
    return AuditedTrace(folder, found, run=run_of)


def _find_graph(run: Path | None, statement: TraceStatement) -> Path | None:
    """The file in a run directory that holds the graph; `graphs/` names graphs by root, but for the first."""
    if run is None or statement.graph is None:
        return None
    named = run / "graphs" / f"{statement.graph.removeprefix('sha256:')}.json"
    first = run / "graphs" / "step.json"
    if named.is_file() or not first.is_file():
        return named if named.is_file() else None
    limits = GraphLimits()
    return first if document_root(read_document(first, limits.document_bytes), limits) == statement.graph else None


def audit_trace(trace: AuditedTrace, limits: TraceLimits = DEFAULT) -> Verdict:
    """Judge a trace. Memory grows with the graph and the steps under way at one time, not with the trace.

    Raises `MalformedError` at a line that is no event, `UnavailableError` where a file is not there.
    """
    try:
        cluster = trace.folder.cluster()
        return _judge(trace, cluster, limits)
    except ProofError as error:
        return Verdict((Finding(1.0, 0.0, "trace root", detail=str(error)),), assumptions=ASSUMED)


def _judge(trace: AuditedTrace, cluster: Cluster, limits: TraceLimits) -> Verdict:
    compared = Comparing()
    work = GraphWork(trace.graph).nodes if trace.graph else {}
    streams = Streams(cluster, limits, compared, {number for number, each in work.items() if each.is_update})
    transfers = Transfers(cluster, limits, compared)
    steps = TracedSteps(work, cluster, limits, compared, Durations(limits.longer))
    for place, event in enumerate(trace.folder.events()):
        streams.see(place, event)
        transfers.see(place, event)
        if trace.graph is not None:
            steps.see(place, event)
    transfers.finish()
    steps.finish()
    findings = (Finding(0.0, 0.0, "trace root"), *_claim(trace), *compared.findings())
    excess = steps.durations.excess(work)
    excess.join(transfers.excess)
    size = trace.folder.statement().events.size
    return Verdict(
        findings,
        unavailable=tuple(_undecided(trace, streams, steps, excess, limits)),
        not_checked=tuple(_not_checked(cluster)),
        assumptions=ASSUMED,
        coverage=VerdictCoverage(size, size, "events", "compared"),
        shown=(
            f"{steps.judged:,} steps of {len(steps.work):,} operators",
            f"{100 * streams.unexplained:.1f} % of the device time is explained by no operator",
            streams.shares(),
            *_too_long(excess, streams, limits),
        ),
    )


def _claim(trace: AuditedTrace) -> list[Finding]:
    """Whether the claim that the header names is that of the run around the trace."""
    named = trace.folder.statement().claim
    if named is None or trace.run is None:
        return []
    claim = Claim.from_bytes(read_document(trace.run / "claim.json"), "claim.json")
    is_named = claim.identity == named
    return [Finding(0.0 if is_named else 1.0, 0.0, "claim of the trace", detail="" if is_named else "of another run")]


def _too_long(excess: Excess, streams: Streams, limits: TraceLimits) -> list[str]:
    """The operators that took longer than the limit allows."""
    if not excess.nanoseconds:
        return []
    share = 100 * excess.nanoseconds / streams.whole
    more = f"{share:.1f} % of the device time is beyond {limits.longer:g} times what its operators need"
    return [f"{more}: {'; '.join(told for _, told in excess.longest)}"]


def _undecided(
    trace: AuditedTrace, streams: Streams, steps: TracedSteps, excess: Excess, limits: TraceLimits
) -> list[str]:
    found = [trace.missing] if trace.missing else []
    if trace.graph is not None and not steps.judged:
        found.append("operators: no event names one; record with marks, as docs/traces.md says")
    if steps.undecided:
        count, step = sum(steps.undecided.values()), min(steps.undecided)
        found.append(f"{count:,} operators may be among the kernels that name none (the first in step {step})")
    counted = max(0, excess.nanoseconds - limits.stall * max(1, steps.judged))
    too_long = counted / streams.whole if streams.whole else 0.0
    if streams.unexplained + too_long > limits.unexplained:
        share, allowed = 100 * (streams.unexplained + too_long), 100 * limits.unexplained
        why = f" ({100 * too_long:.1f} % in operators that took too long)" if counted else ""
        found.append(f"{share:.1f} % of the device time is unexplained{why}, more than {allowed:g} % (--unexplained)")
    return found


def _not_checked(cluster: Cluster) -> list[str]:
    """What the devices do not state."""
    computing = [device for device in cluster.devices if device.kind in ("cpu", "gpu", "tpu", "other")]
    stated = {
        "operations per second": [device.name for device in computing if not device.peak],
        "bandwidth of the memory": [device.name for device in computing if device.bandwidth is None],
        "memory": [device.name for device in computing if device.memory is None],
    }
    return [f"{what}: not stated for {_listed(names)}" for what, names in stated.items() if names]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
