"""This machine as it replays a run."""

from __future__ import annotations

from tallystick.audits.policy import Policy
from tallystick.engines.torch.training.verifier_stack import torch_verifier_stack
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.auditing import replay_device
from tallystick.verdicts.replayer import VerifierStack


def verifier_stack(run: RunDirectory, device: str | None, policy: Policy) -> VerifierStack:
    """This machine as it replays `run`, on `device` or on the one that the run names."""
    stated = run.environment()
    return torch_verifier_stack(stated, replay_device(device, stated), policy.parameters_max)
