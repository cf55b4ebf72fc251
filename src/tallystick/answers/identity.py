"""Checks who signed a receipt, and for which model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import CheckLog
from tallystick.attestation.signatures import check_signature
from tallystick.errors import UnavailableError
from tallystick.transcripts.model_card import TRAINING_CLAIM
from tallystick.transcripts.receipt import SIGNED, SignedReceipt
from tallystick.workloads.language_model import LanguageModel

if TYPE_CHECKING:
    from tallystick.answers.verify import ReceiptContext

UNKNOWN: Final = "unknown"
SIGNATURE_BYTES: Final = 96


def check_signer(log: CheckLog, signed: SignedReceipt, body: bytes, policy: ReceiptPolicy) -> None:
    """Check the signature over the receipt's bytes `body`, and that the policy trusts its key."""
    with log.findings.check("signature"):
        check_signature(signed.key, signed.signature, SIGNED + body)
    if not policy.keys:
        log.not_checked.append("whose key signed the receipt: name the keys that you trust with --trust-key")
    elif signed.key in policy.keys:
        log.agrees("signature", "key")
    elif policy.unknown_key == "rejected":
        log.differs("signature", "key", f"{signed.key} is not a key that the policy trusts")
    else:
        log.unavailable("signature", f"{signed.key} is not a key that the policy trusts")


def check_model(log: CheckLog, context: ReceiptContext, model: LanguageModel, policy: ReceiptPolicy) -> None:
    """Check that the receipt names the promised model, and an engine that the policy accepts.

    Raises `UnavailableError` if the verifier's model is not the one that the policy asks for.
    """
    card = model.card
    if policy.model not in (None, card.identity):
        raise UnavailableError(f"the model given is {card.identity}; the policy asks for {policy.model}")
    if card.dtype not in policy.dtypes or card.quantization not in (None, *policy.quantizations):
        stated = card.dtype if card.quantization is None else f"{card.dtype}, {card.quantization}"
        raise UnavailableError(f"the model given is in {stated}; the policy does not accept that")
    if context.receipt.model == card.identity:
        log.agrees("model", "model root")
        _note_origin(log, model)
    else:
        from tallystick.answers.other_model import explain_other_model

        explain_other_model(log, context, model, policy)
    _check_cache(log, context.receipt.engine.kv_cache, policy)


def _note_origin(log: CheckLog, model: LanguageModel) -> None:
    """Say which claim the weights come from, where the verifier's own directory holds one."""
    folder = getattr(model, "directory", None)
    if folder is not None and (folder / TRAINING_CLAIM).is_file():
        from tallystick.answers.origin import note_claim

        note_claim(log, folder / TRAINING_CLAIM, model.card)


def _check_cache(log: CheckLog, stated: str, policy: ReceiptPolicy) -> None:
    accepted = ", ".join(policy.kv_caches)
    if stated in policy.kv_caches:
        log.agrees("model", "engine.kv_cache")
    elif stated == UNKNOWN:
        log.unavailable(
            "model", f"the receipt does not say which cache was used; the policy's `kv_caches` are {accepted}"
        )
    else:
        log.differs("model", "engine.kv_cache", f"{stated}; the policy accepts {accepted}")
