"""Explains why a receipt names another model root than that of the verifier's model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import CheckLog
from tallystick.transcripts.model_card import Dtype, named_root
from tallystick.transcripts.receipt import PROXY
from tallystick.workloads.language_model import LanguageModel

if TYPE_CHECKING:
    from tallystick.answers.verify import ReceiptContext

DTYPES: Final[tuple[Dtype, ...]] = ("F32", "BF16", "F16")


def explain_other_model(log: CheckLog, context: ReceiptContext, model: LanguageModel, policy: ReceiptPolicy) -> None:
    """Say why the root differs: another model, the same one in another precision, or a name without weights.

    The root of a card of version 1 is one of the same model.
    """
    card, stated = model.card, context.receipt.model
    held = f"{card.identity} ({card.architecture}, {card.dtype})"
    if stated == _former_root(model):
        log.agrees("model", "model root")
        return
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
