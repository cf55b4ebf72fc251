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
    from tallystick.answers.unverified import UnverifiedAnswerWarning as UnverifiedAnswerWarning
    from tallystick.api.answers import verify as verify
    from tallystick.api.audit_over_http import audit_over_http as audit_over_http
    from tallystick.api.audit_result import AuditResult as AuditResult
    from tallystick.api.auditing import audit as audit
    from tallystick.api.comparing import diff as diff
    from tallystick.api.database import Database as Database, open as open
    from tallystick.api.opening import open_operators as open_operators
    from tallystick.api.operators import judge as judge
    from tallystick.api.rows import write_rows as write_rows
    from tallystick.api.segment import open_segment as open_segment, verify_segment as verify_segment
    from tallystick.api.training import train as train
    from tallystick.attestation.signing import SigningKey as SigningKey
    from tallystick.audits.policy import Policy as Policy
    from tallystick.differences.difference import Difference as Difference
    from tallystick.errors import (
        InconclusiveError as InconclusiveError,
        MalformedError as MalformedError,
        ProofError as ProofError,
        RejectedError as RejectedError,
        RuleError as RuleError,
        TallyError as TallyError,
        UnavailableError as UnavailableError,
        UsageError as UsageError,
        VerdictError as VerdictError,
    )
    from tallystick.frameworks.model_cards import card_of as card_of
    from tallystick.frameworks.torch.capture.model import capture as capture
    from tallystick.frameworks.torch.ema import Ema as Ema
    from tallystick.frameworks.torch.generation.language_models import load_language_model as load_language_model
    from tallystick.frameworks.torch.row_dataset import RowsDataset as RowsDataset, rows as rows
    from tallystick.judging.verdict import Verdict as Verdict
    from tallystick.recorders.generation import AnswerRequest as AnswerRequest, record_generation as record_generation
    from tallystick.recorders.huggingface import TallyCallback as TallyCallback
    from tallystick.recorders.inference import record_inference as record_inference
    from tallystick.recorders.lightning import BatchHooks as BatchHooks
    from tallystick.recorders.own_loop import record_training as record_training
    from tallystick.recorders.preflight import Blocker as Blocker, preflight as preflight
    from tallystick.recorders.receipts import ReceiptIssuer as ReceiptIssuer, RecordSettings as RecordSettings
    from tallystick.serving.vllm.receipts import (
        VLLM_OPTIONS as VLLM_OPTIONS,
        issue_receipts as issue_receipts,
        vllm_issuer as vllm_issuer,
    )
    from tallystick.tolerances.fingerprints.standard import standard_fingerprints as standard_fingerprints
    from tallystick.transcripts.recipe import Recipe as Recipe

HOMES = {
    "tallystick.answers.client": "wrap",
    "tallystick.answers.policy": "ReceiptPolicy",
    "tallystick.answers.unverified": "UnverifiedAnswerWarning",
    "tallystick.api.answers": "verify",
    "tallystick.api.audit_over_http": "audit_over_http",
    "tallystick.api.audit_result": "AuditResult",
    "tallystick.api.auditing": "audit",
    "tallystick.api.comparing": "diff",
    "tallystick.api.database": "Database open",
    "tallystick.api.opening": "open_operators",
    "tallystick.api.operators": "judge",
    "tallystick.api.rows": "write_rows",
    "tallystick.api.segment": "open_segment verify_segment",
    "tallystick.api.training": "train",
    "tallystick.attestation.signing": "SigningKey",
    "tallystick.audits.policy": "Policy",
    "tallystick.differences.difference": "Difference",
    "tallystick.errors": (
        "InconclusiveError MalformedError ProofError RejectedError RuleError TallyError UnavailableError UsageError "
        "VerdictError"
    ),
    "tallystick.frameworks.model_cards": "card_of",
    "tallystick.frameworks.torch.capture.model": "capture",
    "tallystick.frameworks.torch.generation.language_models": "load_language_model",
    "tallystick.frameworks.torch.ema": "Ema",
    "tallystick.frameworks.torch.row_dataset": "RowsDataset rows",
    "tallystick.judging.verdict": "Verdict",
    "tallystick.recorders.generation": "AnswerRequest record_generation",
    "tallystick.recorders.huggingface": "TallyCallback",
    "tallystick.recorders.inference": "record_inference",
    "tallystick.recorders.lightning": "BatchHooks",
    "tallystick.recorders.own_loop": "record_training",
    "tallystick.recorders.preflight": "Blocker preflight",
    "tallystick.recorders.receipts": "ReceiptIssuer RecordSettings",
    "tallystick.serving.vllm.receipts": "VLLM_OPTIONS issue_receipts vllm_issuer",
    "tallystick.tolerances.fingerprints.standard": "standard_fingerprints",
    "tallystick.transcripts.recipe": "Recipe",
}
__version__ = "0.1.0"
__all__, __getattr__, __dir__ = lazy(__name__, HOMES)
