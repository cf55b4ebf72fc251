"""The source of an opening: a record with its proof, the graph of its step, and everything that the step read.

A step of a training is reached by a replay from the anchor before it. A call of a model needs only its own inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.inference import Calls
from tallystick.errors import UsageError
from tallystick.graphs.modules import load_modules
from tallystick.store.log import open_line
from tallystick.workloads.names import BATCH

if TYPE_CHECKING:
    from tallystick.frameworks.torch.training.graph_replayer import GraphReplayer
    from tallystick.recorders.step_opening import OpeningSource

THREADS_MAX: Final = 256
MakeReplayer = Callable[[CheckedRun], "GraphReplayer"]


def graph_replayer(evidence: CheckedRun, device: str = "cpu") -> GraphReplayer:
    """A replayer of the run's step graph on this machine, with as many threads as the run states.

    Raises `UsageError` if the run has no step graph, `UnavailableError` if the device is not there.
    """
    import torch

    from tallystick.frameworks.torch.training.graph_replayer import GraphReplayer

    if evidence.program is None:
        raise UsageError(f"{evidence.run.path}: the run has no step graph; its steps have no operators to open")
    torch.set_num_threads(min(evidence.environment.threads, THREADS_MAX))
    return GraphReplayer(evidence.spec, evidence.program, device)


def source_of_step(evidence: CheckedRun, step: int, make: MakeReplayer = graph_replayer) -> OpeningSource:
    """Step `step` of a training, after a replay from the anchor before it.

    Raises `UsageError` if the run has no such step or no step graph, and whatever a replay raises.
    """
    from tallystick.recorders.step_opening import OpeningSource

    log = evidence.claim.transcript
    place = evidence.run.place_of_step(step, log.size)
    replayer = make(evidence)
    replay_to(evidence, replayer, step - 1)
    assert evidence.program is not None  # checked by `make`
    record = open_line(evidence.run.transcript_path, place, log.size)
    graph, bindings = evidence.program.at(step).graph, replayer.bindings(step)
    modules = load_modules(evidence.run.graph_path_of(evidence.step(step)), graph).paths
    return OpeningSource(evidence.claim.identity, log, record, graph, bindings, replayer.carried, modules)


def replay_to(evidence: CheckedRun, replayer: GraphReplayer, step: int) -> int:
    """Bring a replayer to the state after `step`, from the last anchor up to there; returns that anchor."""
    start = max(anchor for anchor in evidence.anchors if anchor <= step)
    replayer.restore(evidence.state(start))
    for index in range(start + 1, step + 1):
        replayer.step(index)
    return start


def out_of_reach(evidence: CheckedRun, step: int) -> str:
    """Why no replay reaches a step: it, or one between it and the anchor before it, has no step graph; else empty."""
    start = max(anchor for anchor in evidence.anchors if anchor < step)
    for record in map(evidence.step, range(start + 1, step + 1)) if evidence.varies else ():
        if (why := record.no_graph or evidence.claim.why_withdrawn(record.index)) is not None:
            return f"step {record.index} has no step graph: {why}"
    return ""


def source_of_call(calls: Calls, number: int) -> OpeningSource:
    """Call `number` of a model, counted from 1; raises `UsageError` if there is no such call."""
    from tallystick.recorders.step_opening import OpeningSource

    if not 1 <= number <= len(calls.records):
        raise UsageError(f"--step {number}: {len(calls.records)} calls were recorded")
    inputs = {f"{BATCH}{name}": tensor for name, tensor in calls.inputs(calls.records[number - 1]).items()}
    weights, digests = calls.digested_weights()
    bindings = {**calls.constants, **weights, **inputs}
    log = calls.claim.transcript
    record = open_line(calls.run.transcript_path, number - 1, log.size)
    modules = load_modules(calls.run.graph_path, calls.graph).paths
    known = dict(digests.entries)
    return OpeningSource(calls.claim.identity, log, record, calls.graph, bindings, modules=modules, digests=known)
