"""Who signed a receipt, for which model, and from which training claim its weights come."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import read_document
from tallystick.formats.claims import TRAINING_CLAIM, Claim, Dtype, ModelCard, named_root
from tallystick.formats.receipt import PROXY, SIGNED, SignedReceipt
from tallystick.formats.signing import check_signature
from tallystick.verdicts.language_model import LanguageModel
from tallystick.verdicts.verdict import Findings

if TYPE_CHECKING:
    from tallystick.audits.answers.verify import ReceiptContext


# Says from which training claim the promised weights come: one digest of weights links claim, model and receipt.


def note_claim(findings: Findings, file: Path, card: ModelCard) -> None:
    """Note the claim beside the verifier's own copy; it does not change the verdict on an answer."""
    try:
        claim = Claim.from_bytes(read_document(file), file.name)
    except (MalformedError, UnavailableError) as error:
        findings.not_checked.append(f"where the weights come from: {error}")
        return
    if claim.weights == card.weights:
        audit = f"`tally audit RUN --claim {quote(claim.identity)}`"
        findings.not_checked.append(f"how the weights were trained: they are those of claim {claim.identity}; {audit}")
    else:
        stated = claim.weights or "no weights"
        findings.not_checked.append(
            f"where the weights come from: {file.name} names {stated}, and the model has {card.weights}"
        )


# Explains why a receipt names another model root than that of the verifier's model.

DTYPES: Final[tuple[Dtype, ...]] = ("F32", "BF16", "F16")


def explain_other_model(
    findings: Findings, context: ReceiptContext, model: LanguageModel, policy: ReceiptPolicy
) -> None:
    """Say why the root differs: another model, the same one in another precision, or a name without weights.

    The root of a card of version 1 is one of the same model.
    """
    card, stated = model.card, context.receipt.model
    held = f"{card.identity} ({card.architecture}, {card.dtype})"
    if stated == _former_root(model):
        findings.agrees("model", "model root")
        return
    dtype = _precision(stated, model)
    if dtype is not None and policy.model is None and dtype in policy.dtypes:
        line = f"the receipt is for the model in {dtype}, and it was loaded in {card.dtype}: give --dtype {dtype}"
        findings.leave_open("model", f"{line} if that is what was promised")
    elif dtype is not None:
        findings.differs("model", "model root", f"that of the model in {dtype}; the policy was promised {card.dtype}")
    elif _is_name(context):
        findings.leave_open("model", f"the receipt binds a name and no weights: give its proxy the directory of {held}")
    else:
        findings.differs("model", "model root", f"{stated} in the receipt; the model given is {held}")


def _former_root(model: LanguageModel) -> str | None:
    """The root that version 1 of the card gave the verifier's own copy."""
    describe = getattr(model, "former_card", None)
    card = None if describe is None else describe()
    return None if card is None else str(card.identity)


def _precision(root: str, model: LanguageModel) -> Dtype | None:
    """The precision in which the verifier's own copy has this root."""
    read = getattr(model, "card_in", None)
    cards = [] if read is None else [read(dtype) for dtype in DTYPES if dtype != model.card.dtype]
    return next((card.dtype for card in cards if card is not None and card.identity == root), None)


def _is_name(context: ReceiptContext) -> bool:
    """Whether the root is that of the requested name; or, if no name is known, whether a proxy made the receipt."""
    asked = None if context.request is None else context.request.model
    names = {name for name in (asked, context.response.model) if name is not None}
    if not names:
        return context.receipt.engine.name == PROXY
    return context.receipt.model in {named_root(name) for name in names}


# Checks who signed a receipt, and for which model.

UNKNOWN: Final = "unknown"
SIGNATURE_BYTES: Final = 96


def check_signer(findings: Findings, signed: SignedReceipt, body: bytes, policy: ReceiptPolicy) -> None:
    """Check the signature over the receipt's bytes `body`, and that the policy trusts its key."""
    with findings.check("signature"):
        check_signature(signed.key, signed.signature, SIGNED + body)
    if not policy.keys:
        findings.not_checked.append("whose key signed the receipt: name the keys that you trust with --trust-key")
    elif signed.key in policy.keys:
        findings.agrees("signature", "key")
    elif policy.unknown_key == "rejected":
        findings.differs("signature", "key", f"{signed.key} is not a key that the policy trusts")
    else:
        findings.leave_open("signature", f"{signed.key} is not a key that the policy trusts")


def check_model(findings: Findings, context: ReceiptContext, model: LanguageModel, policy: ReceiptPolicy) -> None:
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
        findings.agrees("model", "model root")
        _note_origin(findings, model)
    else:
        explain_other_model(findings, context, model, policy)
    _check_cache(findings, context.receipt.engine.kv_cache, policy)


def _note_origin(findings: Findings, model: LanguageModel) -> None:
    """Say which claim the weights come from, where the verifier's own directory holds one."""
    folder = getattr(model, "directory", None)
    if folder is not None and (folder / TRAINING_CLAIM).is_file():
        note_claim(findings, folder / TRAINING_CLAIM, model.card)


def _check_cache(findings: Findings, stated: str, policy: ReceiptPolicy) -> None:
    accepted = ", ".join(policy.kv_caches)
    if stated in policy.kv_caches:
        findings.agrees("model", "engine.kv_cache")
    elif stated == UNKNOWN:
        findings.leave_open(
            "model", f"the receipt does not say which cache was used; the policy's `kv_caches` are {accepted}"
        )
    else:
        findings.differs("model", "engine.kv_cache", f"{stated}; the policy accepts {accepted}")
