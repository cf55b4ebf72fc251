"""Says from which training claim the promised weights come: one digest of weights links claim, model and receipt."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from tallystick.answers.report import CheckLog
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, UnavailableError
from tallystick.transcripts.claim import Claim
from tallystick.transcripts.model_card import ModelCard


def note_claim(log: CheckLog, file: Path, card: ModelCard) -> None:
    """Note the claim beside the verifier's own copy; it does not change the verdict on an answer."""
    try:
        claim = Claim.from_bytes(read_document(file), file.name)
    except (MalformedError, UnavailableError) as error:
        log.not_checked.append(f"where the weights come from: {error}")
        return
    if claim.weights == card.weights:
        audit = f"`tally audit RUN --claim {quote(claim.identity)}`"
        log.not_checked.append(f"how the weights were trained: they are those of claim {claim.identity}; {audit}")
    else:
        stated = claim.weights or "no weights"
        log.not_checked.append(
            f"where the weights come from: {file.name} names {stated}, and the model has {card.weights}"
        )
