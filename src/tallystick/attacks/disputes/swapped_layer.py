"""A provider promises one model and answers with another: the weights of one layer differ.

The claim has the weights and the graph of the promised model. The outputs, their digests and the transcript are those
of the model that was really run. In a dispute the forger opens the promised weights, because the claim names their
digest. But the operators that read this layer compute with the other weights.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tallystick.attacks.disputes.dishonest import SubstitutingEngine
from tallystick.audits.inference import Calls
from tallystick.commitments.digests import Digest
from tallystick.disputes.evidence.gathering import gather_whole
from tallystick.disputes.evidence.traces import trace_of_calls
from tallystick.documents.files import write_atomically
from tallystick.errors import UsageError
from tallystick.graphs.execution import execute
from tallystick.store.inference import InferenceDirectory
from tallystick.store.log_writer import LogWriter
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import read_state, write_state
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.inference import call_file
from tallystick.workloads.names import BATCH

if TYPE_CHECKING:
    from tallystick.disputes.game.protocols import Trace

PARTS: Final[tuple[Literal["inputs", "outputs"], ...]] = ("inputs", "outputs")


def forge_swapped_layer(run: Path, out: Path, weight: str) -> None:
    """Answer all calls of an inference directory again with another `weight`; the rest is published unchanged.

    Raises `UsageError` if the model has no such weight.
    """
    shutil.copytree(run, out)
    calls = gather_whole(InferenceDirectory(run))
    engine = SubstitutingEngine(swapped(calls, weight))
    fixed = {**calls.constants, **calls.weights()}
    for record in calls.records:
        inputs = {f"{BATCH}{name}": tensor for name, tensor in calls.inputs(record).items()}
        write_state(out / call_file(record.index, "outputs"), execute(calls.graph, fixed | inputs, engine))
    seal(InferenceDirectory(out), calls)


def swapped_layer_trace(run: Path, work: Path, weight: str) -> Trace:
    """The trace of a forged directory."""
    directory = InferenceDirectory(run)
    return trace_of_calls(directory, work, SubstitutingEngine(swapped(gather_whole(directory), weight)))


def swapped(calls: Calls, weight: str) -> State:
    """The weight that is really used: the promised one, rounded to 4 bits as in a cheaper model."""
    weights = calls.weights()
    if weight not in weights:
        raise UsageError(f"{weight}: the model has {', '.join(sorted(weights))}")
    promised = weights[weight].values().astype(np.float64)
    step = float(np.abs(promised).max()) / 7
    return {weight: Tensor.of((np.round(promised / step) * step).astype(np.float32), weights[weight].dtype)}


def seal(forged: InferenceDirectory, calls: Calls) -> None:
    """Recompute transcript, tiles and claim from the inputs and outputs in the directory."""
    shutil.rmtree(forged.path / "tiles")
    forged.transcript_path.unlink()
    log = LogWriter(forged.transcript_path)
    for record in calls.records:
        parts = {part: read_state(forged.path / call_file(record.index, part), canonical=True) for part in PARTS}
        named: dict[str, Digest] = {part: state_digest(state) for part, state in parts.items()}
        log.append(record.model_copy(update=named).to_bytes())
    claim = calls.claim.model_copy(update={"transcript": log.close()})
    write_atomically(forged.claim_path, claim.to_bytes())
