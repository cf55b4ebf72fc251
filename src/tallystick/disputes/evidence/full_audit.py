"""A full audit on this machine: what a challenger stakes a bond on, and what a member of a committee votes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.audits.training import VerifierStack, audit_training
from tallystick.commitments.digests import Digest
from tallystick.disputes.evidence.opening_sources import THREADS_MAX

if TYPE_CHECKING:
    from tallystick.transcripts.environment import Environment
    from tallystick.transcripts.spec import Spec


def audit_whole(evidence: CheckedRun, device: str) -> Report:
    """A full audit: within calibrated limits; where none are calibrated, bit by bit on the same stack."""
    import torch

    torch.set_num_threads(min(evidence.environment.threads, THREADS_MAX))
    stack = _stack(device)
    report = audit_training(evidence.run, Policy(mode="tolerant", full=True), bytes(32), stack)
    if not report.verdict.unavailable or stack.environment.differences(evidence.environment):
        return report
    return audit_training(evidence.run, Policy(mode="exact", full=True), bytes(32), stack)


def environment_here(device: str) -> Environment:
    """The environment of this machine."""
    from tallystick.frameworks.torch.environment import describe_environment

    return describe_environment("cuda" if device.startswith("cuda") else "cpu")


def _stack(device: str) -> VerifierStack:
    from tallystick.frameworks.tokenizers import train_bpe
    from tallystick.frameworks.torch.training.graph_replayer import GraphReplayer
    from tallystick.frameworks.torch.training.replayer import TorchReplayer

    return VerifierStack(
        environment_here(device),
        lambda spec, dataset, plan: TorchReplayer(spec, dataset, plan, device),
        lambda spec, program: GraphReplayer(spec, program, device),
        _captured_root,
        train_bpe,
    )


_captured_roots: dict[Digest, Digest] = {}


def _captured_root(spec: Spec) -> Digest:
    """The graph that these libraries give for a recipe; captured once, because one process does not change them."""
    from tallystick.frameworks.torch.training.graph_replayer import recipe_graph_root

    if spec.identity not in _captured_roots:
        _captured_roots[spec.identity] = recipe_graph_root(spec)
    return _captured_roots[spec.identity]
