"""Replays one step of a run under torch.profiler, with every operator marked, and keeps its timeline."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tallystick.disputes.evidence.gathering import gather_records
from tallystick.disputes.evidence.opening_sources import graph_replayer, source_of_step
from tallystick.frameworks.torch.device import require_device
from tallystick.frameworks.torch.marked_engine import profile_graph
from tallystick.frameworks.torch.this_machine import HOST, this_machine
from tallystick.recorders.timelines.imported import TraceSubject, import_torch
from tallystick.recorders.timelines.torch_rows import DevicePlaces
from tallystick.store.run import RunDirectory
from tallystick.traces.statement import TraceStatement

SOURCE = "torch.profiler, a replay of the step graph"


def profile_step(run: RunDirectory, step: int, out: Path, device: str = "cpu") -> TraceStatement:
    """Replay a step on this machine and write its timeline into the new folder `out`.

    Raises:
        ProofError: the run is not consistent.
        UnavailableError: the run has no step graph, a file of it is missing, or `out` is not empty.
        UsageError: there is no such step, or the device is unknown.
    """
    require_device(device)
    source = source_of_step(gather_records(run), step, lambda evidence: graph_replayer(evidence, device))
    subject = TraceSubject(this_machine(), DevicePlaces(HOST), source.graph, source.claim, step)
    with tempfile.TemporaryDirectory(prefix="tally-profile-") as folder:
        file = Path(folder) / "kineto.json"
        profile_graph(source.graph, source.bindings, step, file, device)
        return import_torch([file], out, subject, SOURCE)
