"""What every audit begins with: the run, the policy, and this machine as it replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.audits.policy import Policy, read_policy
from tallystick.errors import UnavailableError
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory

if TYPE_CHECKING:
    from tallystick.datasets.rows import CommittedRows
    from tallystick.transcripts.environment import Environment
    from tallystick.workloads.origin import Origin
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


def directory_of(corpus: Path | str | None) -> Path | None:
    """The directory of shards, however it is given; raises `UnavailableError` where it is not there."""
    if corpus is not None and not Path(corpus).is_dir():
        raise UnavailableError(f"{corpus}: no such directory of shards")
    return None if corpus is None else Path(corpus)


def origin_of(initial: Path | str | None) -> Origin | None:
    """The weights of a directory; raises `UnavailableError` where it holds none."""
    if initial is None:
        return None
    from tallystick.store.origin import open_origin

    return open_origin(Path(initial))


def with_origin(stack: VerifierStack, origin: Origin | None, corpus: Path | None) -> VerifierStack:
    """The stack of a verifier who has these weights and, with shards too, makes rows of conversations again."""
    found = replace(stack, origin=origin)
    if origin is None or corpus is None:
        return found
    shards, model = corpus, origin.path

    def check(rows: CommittedRows, places: Sequence[int]) -> None:
        from tallystick.frameworks.chat_rows import check_made_again  # raises where a library is missing

        check_made_again(rows, places, shards, model)

    return replace(found, made_again=check)


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
