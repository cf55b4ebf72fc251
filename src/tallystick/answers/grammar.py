"""Compares a receipt's grammar with the one that the customer asked for, and makes its masks from the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallystick.answers.report import CheckLog
from tallystick.commitments.digests import digest
from tallystick.errors import UnavailableError
from tallystick.transcripts.sampler import Grammar

if TYPE_CHECKING:
    from tallystick.answers.request import ExpectedRequest
    from tallystick.workloads.language_model import LanguageModel, TokenMasks

NO_REQUEST: Final = "the tokens were chosen under a grammar, and its schema is in the request: give the request"
NOT_STATED: Final = "the request asks for JSON of a schema, and the receipt does not say that tokens were held to it"


def check_grammar(log: CheckLog, stated: Grammar | None, asked: ExpectedRequest) -> None:
    """Check that the receipt states the grammar that the request asks for, and no other."""
    if asked.wanted is None:
        if stated is not None:
            log.differs("settings", "grammar", f"{stated.kind} in the receipt, and nobody asked for one")
    elif stated is None:
        log.unavailable("settings", NOT_STATED)
    else:
        kind, text = asked.wanted
        log.compare("settings", "grammar.kind", stated.kind, kind)
        log.compare("settings", "grammar.digest", stated.digest, digest("blob", text.encode()))


def masks_of(stated: Grammar, asked: ExpectedRequest | None, model: LanguageModel) -> tuple[TokenMasks | None, str]:
    """The masks of the request's own schema, by the library and version that the receipt states; or why there are none.

    A schema that the receipt does not name was refused before (`check_grammar`).
    """
    if asked is None or asked.wanted is None:
        return None, NO_REQUEST
    try:
        return model.token_masks(stated, asked.wanted[1]), ""
    except UnavailableError as error:
        return None, str(error)
