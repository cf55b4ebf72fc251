"""`tallystick.open_operators`: every operator of one recorded step or call, with proofs."""

from __future__ import annotations

from pathlib import Path

from tallystick.disputes.evidence.subjects import (
    graph_replayer,
    subject_of_call,
    subject_of_step,
    whole_calls,
    whole_evidence,
)
from tallystick.errors import UsageError
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.recorders.step_opening import open_operators as open_subject
from tallystick.store.inference import InferenceDirectory, claims_inference
from tallystick.store.run import RunDirectory
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
        ProofError: the run does not hang together.
        UnavailableError: the run has no step graph, or a file of it is missing.
        UsageError: there is no such step or node, `out` is not empty, or the device is unknown.
    """
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: cpu or cuda")
    path = Path(run) if isinstance(run, str | Path) else run.path
    if claims_inference(path):
        subject = subject_of_call(whole_calls(InferenceDirectory(path)), step)
    else:
        evidence = whole_evidence(RunDirectory(path))
        subject = subject_of_step(evidence, step, lambda found: graph_replayer(found, device))
    return open_subject(subject, Path(out), TorchEngine(device), node, tensors)
