"""Tallystick makes ML compute verifiable.

A prover commits to a workload while running its own fast code; a verifier replays any part of it and
compares, allowing exactly the numerical drift that honest hardware causes, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.core.lazy import lazy

if TYPE_CHECKING:
    from tallystick.audits.answers.background import UnverifiedAnswerWarning as UnverifiedAnswerWarning
    from tallystick.audits.answers.client import wrap as wrap
    from tallystick.audits.answers.policy import ReceiptPolicy as ReceiptPolicy
    from tallystick.audits.differences.difference import Difference as Difference
    from tallystick.audits.policy import Policy as Policy
    from tallystick.core.errors import (
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
    from tallystick.engines.model_cards import card_of as card_of
    from tallystick.engines.torch.capture.model import capture as capture
    from tallystick.engines.torch.generation.language_models import load_language_model as load_language_model
    from tallystick.engines.torch.wrappers import Ema as Ema
    from tallystick.formats.fingerprints import standard_fingerprints as standard_fingerprints
    from tallystick.formats.recipe import Recipe as Recipe
    from tallystick.formats.signing import SigningKey as SigningKey
    from tallystick.recording.generation import AnswerRequest as AnswerRequest, record_generation as record_generation
    from tallystick.recording.inference import record_inference as record_inference
    from tallystick.recording.loop.huggingface import TallyCallback as TallyCallback
    from tallystick.recording.loop.own_loop import BatchHooks as BatchHooks, record_training as record_training
    from tallystick.recording.loop.preflight import Blocker as Blocker, preflight as preflight
    from tallystick.recording.receipts import ReceiptIssuer as ReceiptIssuer, RecordSettings as RecordSettings
    from tallystick.recording.rows import RowsDataset as RowsDataset, rows as rows, write_rows as write_rows
    from tallystick.recording.serving.vllm.receipts import (
        VLLM_OPTIONS as VLLM_OPTIONS,
        issue_receipts as issue_receipts,
        vllm_issuer as vllm_issuer,
    )
    from tallystick.tally.answers import verify as verify
    from tallystick.tally.audit_over_http import audit_over_http as audit_over_http
    from tallystick.tally.auditing import (
        AuditResult as AuditResult,
        audit as audit,
        open_segment as open_segment,
        verify_segment as verify_segment,
    )
    from tallystick.tally.comparing import diff as diff
    from tallystick.tally.database import Database as Database, open as open
    from tallystick.tally.operators import judge as judge
    from tallystick.tally.training import open_operators as open_operators, train as train
    from tallystick.verdicts.verdict import Verdict as Verdict

__version__ = "0.1.0"
__getattr__, __dir__ = lazy(__name__)
