"""What every audit begins with: the run, the policy, and this machine as it replays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.audits.policy import Policy, read_policy
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory

if TYPE_CHECKING:
    from tallystick.transcripts.environment import Environment
    from tallystick.workloads.verifier_stack import VerifierStack

RunSource = RunDirectory | InferenceDirectory | Path | str
PolicySource = Policy | Path | str | None


def path_of(run: RunSource) -> Path:
    """The directory of a run, however it is given."""
    return Path(run) if isinstance(run, str | Path) else run.path


def policy_of(policy: PolicySource) -> Policy:
    """A policy, however it is given; raises `MalformedError` and `UnavailableError` for a file."""
    if policy is None:
        return Policy()
    return policy if isinstance(policy, Policy) else read_policy(Path(policy))


def verifier_stack(run: RunDirectory, device: str | None, policy: Policy) -> VerifierStack:
    """This machine as it replays `run`; raises what `replay_device` raises."""
    from tallystick.frameworks.torch.training.verifier_stack import torch_verifier_stack

    stated = run.environment()
    return torch_verifier_stack(stated, replay_device(device, stated), policy.parameters_max)


def replay_device(device: str | None, stated: Environment | None) -> str:
    """Where to replay: on `device`, or on the one that was stated, if it is here.

    Raises `UsageError` for a device of no known kind, `UnavailableError` for one that was asked for and is not here.
    """
    import torch

    if device is not None:
        from tallystick.frameworks.torch.device import require_device

        require_device(device)
    return device or (stated.device if stated is not None and torch.cuda.is_available() else "cpu")
