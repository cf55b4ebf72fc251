"""One way to gather evidence: a folder is read and every digest in it rechecked, or it proves nothing."""

from __future__ import annotations

from typing import overload

from tallystick.audits.checked_run import CheckedRun, gather_evidence
from tallystick.audits.inference import Calls, gather_calls
from tallystick.audits.policy import Policy
from tallystick.errors import ProofError
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory


@overload
def gather_whole(folder: RunDirectory) -> CheckedRun: ...
@overload
def gather_whole(folder: InferenceDirectory) -> Calls: ...
def gather_whole(folder: RunDirectory | InferenceDirectory) -> CheckedRun | Calls:
    """All of a training run or of recorded calls; raises `ProofError` with the first check that fails.

    Of calls the weights, inputs and outputs are read when they are asked for.
    """
    policy = Policy()
    found = gather_calls(folder, policy) if isinstance(folder, InferenceDirectory) else gather_evidence(folder, policy)
    bad = [finding for finding in found.findings.seen if not finding.agrees]
    if bad:
        raise ProofError(f"{folder.path}: {bad[0].name}: {bad[0].detail}")
    return found
