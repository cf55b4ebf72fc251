"""Tallystick makes ML compute verifiable.

A prover commits to a workload while running its own fast code; a verifier replays any part of it and
compares, allowing exactly the numerical drift that honest hardware causes, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy import lazy

if TYPE_CHECKING:
    from tallystick.answers.client import wrap as wrap
    from tallystick.answers.policy import ReceiptPolicy as ReceiptPolicy
    from tallystick.api.answers import verify as verify
    from tallystick.api.auditing import AuditResult as AuditResult
    from tallystick.api.auditing import audit as audit
    from tallystick.api.auditing import verify_segment as verify_segment
    from tallystick.api.opening import open_operators as open_operators
    from tallystick.api.operators import judge as judge
    from tallystick.api.training import train as train
    from tallystick.attestation.signing import SigningKey as SigningKey
    from tallystick.audits.policy import Policy as Policy
    from tallystick.errors import MalformedError as MalformedError
    from tallystick.errors import ProofError as ProofError
    from tallystick.errors import RuleError as RuleError
    from tallystick.errors import TallyError as TallyError
    from tallystick.errors import UnavailableError as UnavailableError
    from tallystick.errors import UsageError as UsageError
    from tallystick.frameworks.torch.capture.model import capture as capture
    from tallystick.frameworks.torch.generation.language_models import load_language_model as load_language_model
    from tallystick.judging.verdict import Verdict as Verdict
    from tallystick.recorders.generation import AnswerRequest as AnswerRequest
    from tallystick.recorders.generation import record_generation as record_generation
    from tallystick.recorders.huggingface import TallyCallback as TallyCallback
    from tallystick.recorders.inference import record_inference as record_inference
    from tallystick.recorders.lightning import BatchHooks as BatchHooks
    from tallystick.recorders.own_loop import record_training as record_training
    from tallystick.recorders.receipts import ReceiptIssuer as ReceiptIssuer
    from tallystick.recorders.receipts import RecordSettings as RecordSettings
    from tallystick.tolerances.fingerprints.standard import standard_fingerprints as standard_fingerprints
    from tallystick.transcripts.recipe import Recipe as Recipe

HOMES = {
    "AnswerRequest": "tallystick.recorders.generation",
    "AuditResult": "tallystick.api.auditing",
    "BatchHooks": "tallystick.recorders.lightning",
    "MalformedError": "tallystick.errors",
    "Policy": "tallystick.audits.policy",
    "ProofError": "tallystick.errors",
    "ReceiptIssuer": "tallystick.recorders.receipts",
    "ReceiptPolicy": "tallystick.answers.policy",
    "Recipe": "tallystick.transcripts.recipe",
    "RecordSettings": "tallystick.recorders.receipts",
    "RuleError": "tallystick.errors",
    "SigningKey": "tallystick.attestation.signing",
    "TallyCallback": "tallystick.recorders.huggingface",
    "TallyError": "tallystick.errors",
    "UnavailableError": "tallystick.errors",
    "UsageError": "tallystick.errors",
    "Verdict": "tallystick.judging.verdict",
    "audit": "tallystick.api.auditing",
    "capture": "tallystick.frameworks.torch.capture.model",
    "judge": "tallystick.api.operators",
    "load_language_model": "tallystick.frameworks.torch.generation.language_models",
    "open_operators": "tallystick.api.opening",
    "record_generation": "tallystick.recorders.generation",
    "record_inference": "tallystick.recorders.inference",
    "record_training": "tallystick.recorders.own_loop",
    "standard_fingerprints": "tallystick.tolerances.fingerprints.standard",
    "train": "tallystick.api.training",
    "verify": "tallystick.api.answers",
    "verify_segment": "tallystick.api.auditing",
    "wrap": "tallystick.answers.client",
}
__version__ = "0.1.0"
__all__ = [
    "AnswerRequest",
    "AuditResult",
    "BatchHooks",
    "MalformedError",
    "Policy",
    "ProofError",
    "ReceiptIssuer",
    "ReceiptPolicy",
    "Recipe",
    "RecordSettings",
    "RuleError",
    "SigningKey",
    "TallyCallback",
    "TallyError",
    "UnavailableError",
    "UsageError",
    "Verdict",
    "__version__",
    "audit",
    "capture",
    "judge",
    "load_language_model",
    "open_operators",
    "record_generation",
    "record_inference",
    "record_training",
    "standard_fingerprints",
    "train",
    "verify",
    "verify_segment",
    "wrap",
]
__getattr__, __dir__ = lazy(__name__, HOMES)
