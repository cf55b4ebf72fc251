"""What is opened of a run: a record with its proof, the graph of its step, and everything that the step read.

A step of a training is reached by replaying from the anchor before it; a call of a model is bound to its own inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tallystick.audits.checked_run import CheckedRun, gather_evidence
from tallystick.audits.inference import Calls, gather_calls
from tallystick.audits.policy import Policy
from tallystick.errors import ProofError, UsageError
from tallystick.judging.findings import Findings
from tallystick.store.inference import InferenceDirectory
from tallystick.store.log import open_line
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import HeaderRecord, StepRecord, read_record
from tallystick.workloads.names import BATCH

if TYPE_CHECKING:
    from tallystick.frameworks.torch.training.graph_replayer import GraphReplayer
    from tallystick.recorders.step_opening import OpeningSource

THREADS_MAX: Final = 256
MakeReplayer = Callable[[CheckedRun], "GraphReplayer"]


def graph_replayer(evidence: CheckedRun, device: str = "cpu") -> GraphReplayer:
    """A replayer of the run's step graph on this machine, with as many threads as the run states.

    Raises `UsageError` where the run has no step graph, `UnavailableError` where the device is not there.
    """
    import torch

    from tallystick.frameworks.torch.training.graph_replayer import GraphReplayer

    if evidence.program is None:
        raise UsageError(f"{evidence.run.path}: the run has no step graph; its steps have no operators to open")
    torch.set_num_threads(min(evidence.environment.threads, THREADS_MAX))
    return GraphReplayer(evidence.spec, evidence.program, device)


def whole_evidence(run: RunDirectory) -> CheckedRun:
    """A run directory whose bytes hang together; raises `ProofError` with the first thing that does not."""
    evidence = gather_evidence(run, Policy())
    _require_whole(str(run.path), evidence.findings)
    return evidence


def whole_calls(run: InferenceDirectory) -> Calls:
    """An inference directory whose bytes hang together; raises `ProofError` with the first thing that does not."""
    calls = gather_calls(run, Policy())
    _require_whole(str(run.path), calls.findings)
    return calls


def subject_of_step(evidence: CheckedRun, step: int, make: MakeReplayer = graph_replayer) -> OpeningSource:
    """Step `step` of a training, after a replay from the anchor before it.

    Raises `UsageError` where the run has no such step or no step graph, and what a replay raises.
    """
    from tallystick.recorders.step_opening import OpeningSource

    log = evidence.claim.transcript
    place = place_of_step(evidence.run, log.size, step)
    replayer = make(evidence)
    replay_to(evidence, replayer, step - 1)
    assert evidence.program is not None  # asked by `make`
    record = open_line(evidence.run.transcript_path, place, log.size)
    bindings = replayer.bindings(step)
    return OpeningSource(evidence.claim.identity, log, record, evidence.program.graph, bindings, replayer.carried)


def replay_to(evidence: CheckedRun, replayer: GraphReplayer, step: int) -> int:
    """Bring a replayer to the state after `step`, from the last anchor up to there; returns that anchor."""
    start = max(anchor for anchor in evidence.anchors if anchor <= step)
    replayer.restore(evidence.state(start))
    for index in range(start + 1, step + 1):
        replayer.step(index)
    return start


def subject_of_call(calls: Calls, number: int) -> OpeningSource:
    """Call `number` of a model, counted from 1; raises `UsageError` where there is none."""
    from tallystick.recorders.step_opening import OpeningSource

    if not 1 <= number <= len(calls.records):
        raise UsageError(f"--step {number}: {len(calls.records)} calls were recorded")
    inputs = {f"{BATCH}{name}": tensor for name, tensor in calls.inputs(calls.records[number - 1]).items()}
    bindings = {**calls.constants, **calls.weights(), **inputs}
    log = calls.claim.transcript
    record = open_line(calls.run.transcript_path, number - 1, log.size)
    return OpeningSource(calls.claim.identity, log, record, calls.graph, bindings)


def place_of_step(run: RunDirectory, size: int, step: int) -> int:
    """The place of a step among the records; raises `UsageError` where there is none.

    Binary search: the places of records grow with their steps.
    """
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        record = read_record(open_line(run.transcript_path, middle, size).line, f"record {middle}")
        reached = -1 if isinstance(record, HeaderRecord) else record.index
        is_before = reached < step or (reached == step and record.kind == "failed")
        low, high = (middle + 1, high) if is_before else (low, middle)
    if low < size:
        found = read_record(open_line(run.transcript_path, low, size).line, f"record {low}")
        if isinstance(found, StepRecord) and found.index == step:
            return low
    raise UsageError(f"--step {step}: the transcript holds no such step")


def _require_whole(path: str, findings: Findings) -> None:
    bad = [finding for finding in findings.seen if not finding.agrees]
    if bad:
        raise ProofError(f"{path}: {bad[0].name}: {bad[0].detail}")
