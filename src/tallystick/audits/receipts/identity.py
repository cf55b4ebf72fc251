"""Who signed a receipt, and for which model."""

from __future__ import annotations

from typing import Final

from tallystick.attestation.signing import check_signature
from tallystick.audits.receipts.policy import ReceiptPolicy
from tallystick.audits.receipts.report import Notebook
from tallystick.errors import UnavailableError
from tallystick.transcripts.model_card import ModelCard
from tallystick.transcripts.receipt import SIGNED, Receipt, SignedReceipt

SIGNATURE_BYTES: Final = 96


def check_signer(notes: Notebook, signed: SignedReceipt, body: bytes, policy: ReceiptPolicy) -> None:
    """The signature over the receipt's bytes `body` is of the key beside it, which the policy trusts."""
    with notes.findings.check("signature"):
        check_signature(signed.key, signed.signature, SIGNED + body)
    if not policy.keys:
        notes.not_checked.append("whose key signed the receipt: the policy names no trusted keys")
    elif signed.key in policy.keys:
        notes.agrees("signature", "key")
    elif policy.unknown_key == "rejected":
        notes.differs("signature", "key", f"{signed.key} is not a key that the policy trusts")
    else:
        notes.lacks("signature", f"{signed.key} is not a key that the policy trusts")


def check_model(notes: Notebook, receipt: Receipt, card: ModelCard, policy: ReceiptPolicy) -> None:
    """The receipt names the promised model, and an engine that the policy accepts.

    Raises `UnavailableError` where the model that the verifier holds is not the one that the policy promises.
    """
    if policy.model not in (None, card.identity):
        raise UnavailableError(f"the model given is {card.identity}; the policy asks for {policy.model}")
    if card.dtype not in policy.dtypes or card.quantization not in (None, *policy.quantizations):
        stated = card.dtype if card.quantization is None else f"{card.dtype}, {card.quantization}"
        raise UnavailableError(f"the model given is in {stated}; the policy does not accept that")
    if receipt.model == card.identity:
        notes.agrees("model", "model root")
    else:
        held = f"{card.identity} ({card.architecture}, {card.dtype})"
        notes.differs("model", "model root", f"{receipt.model} in the receipt; the model given is {held}")
    stated = receipt.engine.kv_cache
    if stated in policy.kv_caches:
        notes.agrees("model", "engine.kv_cache")
    else:
        notes.differs("model", "engine.kv_cache", f"{stated}; the policy accepts {', '.join(policy.kv_caches)}")
