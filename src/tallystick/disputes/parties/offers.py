"""What a directory offers as a claim: its records' tree, or in one-round mode the tree of all its operators."""

from __future__ import annotations

from pathlib import Path

from tallystick.audits.inference import gather_calls
from tallystick.audits.policy import Policy
from tallystick.disputes.coordinators.manifest import files_of
from tallystick.disputes.evidence.calls import require_disputable
from tallystick.disputes.parties.prover import ClaimOffer
from tallystick.documents.files import read_document
from tallystick.judging.opening.files import OPENING
from tallystick.store.inference import InferenceDirectory, claims_inference
from tallystick.store.run import RunDirectory
from tallystick.transcripts.claim import Log
from tallystick.transcripts.opening import Opening


def offer_of(folder: Path) -> ClaimOffer:
    """The offer of a finished run, of recorded calls of a model, or of an opening of all operators.

    Raises `UnavailableError` where there is none, `MalformedError` where its claim is not readable, and `UsageError`
    for calls that could not be defended, because their graph does not take them.
    """
    if (folder / OPENING).is_file():
        log, levels = Opening.from_bytes(read_document(folder / OPENING), OPENING).operators, 1
    else:
        log, levels = _transcript(folder), 2
    return ClaimOffer(log.root.removeprefix("sha256:"), log.size, files_of(folder), levels)


def _transcript(folder: Path) -> Log:
    if claims_inference(folder):
        require_disputable(gather_calls(InferenceDirectory(folder), Policy()))
        return InferenceDirectory(folder).claim().transcript
    return RunDirectory(folder).claim().transcript
