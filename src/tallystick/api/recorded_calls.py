"""The audit of the recorded calls of a model, for `tallystick.audit`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tallystick.api.audit_result import AuditResult
from tallystick.api.replaying import replay_device
from tallystick.api.threads import threads_of
from tallystick.audits.inference import audit_inference
from tallystick.audits.policy import Policy
from tallystick.errors import UsageError
from tallystick.presentation.circumstances import audit_command, circumstances_of, stated_environment
from tallystick.store.inference import InferenceDirectory

if TYPE_CHECKING:
    from tallystick.audits.training import Progress


def audit_calls(
    run: InferenceDirectory, policy: Policy, nonce: bytes, device: str | None, progress: Progress, started: float
) -> AuditResult:
    """Audit recorded calls; `started` is when the audit began, on the clock of `time.perf_counter`."""
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.frameworks.torch.environment import describe_environment

    if policy.tolerance is not None:
        raise UsageError("the policy's tolerance compares states of a training; calls are compared by their outputs")
    stated = stated_environment(run)
    on = replay_device(device, stated)
    progress(0, 0)
    with threads_of(stated):
        environment = describe_environment("cuda" if on == "cuda" else "cpu")
        ready = time.perf_counter()
        report = audit_inference(run, policy, nonce, environment, TorchEngine(on), progress)
    command = audit_command(run.path, policy, nonce, device)
    return AuditResult(report, circumstances_of(run, command, environment, ready - started))
