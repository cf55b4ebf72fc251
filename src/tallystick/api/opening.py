"""`tallystick.open_operators`: every operator of one recorded step or call, with proofs."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from tallystick.disputes.evidence.gathering import gather_records, gather_whole
from tallystick.disputes.evidence.opening_sources import graph_replayer, source_of_call, source_of_step
from tallystick.errors import UsageError
from tallystick.frameworks.torch.device import require_device
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.recorders.step_opening import open_operators as write_opening
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory
from tallystick.store.statement import OpeningDirectory, read_statement
from tallystick.transcripts.opening import Opening


def open_operators(
    run: RunDirectory | InferenceDirectory | Path | str,
    step: int,
    out: Path | str,
    *,
    node: int | None = None,
    tensors: bool = True,
    device: str = "cpu",
) -> Opening:
    """Replay one step of a run, or one recorded call of a model, and write the values of its operators into `out`.

    Args:
        run: the directory of a run that has a step graph, or of recorded calls.
        step: the step or the call, counted from 1.
        out: a directory that is empty or not there.
        node: open this operator alone, with its inclusion proofs.
        tensors: keep the values, not only their digests.
        device: replay on `cpu` or `cuda`.

    Raises:
        ProofError: the run is not consistent.
        UnavailableError: the run has no step graph, or a file of it is missing, or the device is not here.
        UsageError: there is no such step or node, `out` is not empty, or the device is unknown.
    """
    require_device(device)
    path = Path(run) if isinstance(run, str | Path) else run.path
    found = read_statement(path)
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"{path}: holds opened operators already; `tally judge {quote(str(path))}` judges them")
    if isinstance(found, InferenceDirectory):
        source = source_of_call(gather_whole(found), step)
    else:
        source = source_of_step(gather_records(found), step, lambda evidence: graph_replayer(evidence, device))
    return write_opening(source, Path(out), TorchEngine(device), node, tensors)
