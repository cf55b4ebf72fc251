"""Checks who signed a receipt, and for which model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import CheckLog
from tallystick.attestation.signatures import check_signature
from tallystick.errors import UnavailableError
from tallystick.transcripts.model_card import Dtype, named_root
from tallystick.transcripts.receipt import PROXY, SIGNED, SignedReceipt
from tallystick.workloads.language_model import LanguageModel

if TYPE_CHECKING:
    from tallystick.answers.verify import ReceiptContext

DTYPES: Final[tuple[Dtype, ...]] = ("F32", "BF16", "F16")
UNKNOWN: Final = "unknown"
SIGNATURE_BYTES: Final = 96


def check_signer(log: CheckLog, signed: SignedReceipt, body: bytes, policy: ReceiptPolicy) -> None:
    """Check the signature over the receipt's bytes `body`, and that the policy trusts its key."""
    with log.findings.check("signature"):
        check_signature(signed.key, signed.signature, SIGNED + body)
    if not policy.keys:
        log.not_checked.append("whose key signed the receipt: the policy names no trusted keys")
    elif signed.key in policy.keys:
        log.agrees("signature", "key")
    elif policy.unknown_key == "rejected":
        log.differs("signature", "key", f"{signed.key} is not a key that the policy trusts")
    else:
        log.unavailable("signature", f"{signed.key} is not a key that the policy trusts")


def check_model(log: CheckLog, context: ReceiptContext, model: LanguageModel, policy: ReceiptPolicy) -> None:
    """Check that the receipt names the promised model, and an engine that the policy accepts.

    Raises `UnavailableError` where the model that the verifier holds is not the one that the policy promises.
    """
    card = model.card
    if policy.model not in (None, card.identity):
        raise UnavailableError(f"the model given is {card.identity}; the policy asks for {policy.model}")
    if card.dtype not in policy.dtypes or card.quantization not in (None, *policy.quantizations):
        stated = card.dtype if card.quantization is None else f"{card.dtype}, {card.quantization}"
        raise UnavailableError(f"the model given is in {stated}; the policy does not accept that")
    if context.receipt.model == card.identity:
        log.agrees("model", "model root")
    else:
        _check_other(log, context, model, policy)
    _check_cache(log, context.receipt.engine.kv_cache, policy)


def _check_other(log: CheckLog, context: ReceiptContext, model: LanguageModel, policy: ReceiptPolicy) -> None:
    """Say why the root differs: another model, the same one in another precision, or a name without weights."""
    card, stated = model.card, context.receipt.model
    held = f"{card.identity} ({card.architecture}, {card.dtype})"
    dtype = _precision(stated, model)
    if dtype is not None and policy.model is None and dtype in policy.dtypes:
        line = f"the receipt is for the model in {dtype}, and it was loaded in {card.dtype}: give --dtype {dtype}"
        log.unavailable("model", f"{line} if that is what was promised")
    elif dtype is not None:
        log.differs("model", "model root", f"that of the model in {dtype}; the policy was promised {card.dtype}")
    elif _is_name(context):
        log.unavailable("model", f"the receipt binds a name and no weights: give its proxy the directory of {held}")
    else:
        log.differs("model", "model root", f"{stated} in the receipt; the model given is {held}")


def _precision(root: str, model: LanguageModel) -> Dtype | None:
    """The precision in which the verifier's own copy has this root."""
    read = getattr(model, "card_in", None)
    cards = [] if read is None else [read(dtype) for dtype in DTYPES if dtype != model.card.dtype]
    return next((card.dtype for card in cards if card is not None and card.identity == root), None)


def _is_name(context: ReceiptContext) -> bool:
    """Whether the root is that of the requested name, or, where no name is known, the receipt is a proxy's."""
    asked = None if context.request is None else context.request.model
    names = {name for name in (asked, context.response.model) if name is not None}
    if not names:
        return context.receipt.engine.name == PROXY
    return context.receipt.model in {named_root(name) for name in names}


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
