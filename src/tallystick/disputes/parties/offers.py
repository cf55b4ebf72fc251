"""The claim that a folder can make: the tree of its records, or in one-round mode the tree of all its operators."""

from __future__ import annotations

from pathlib import Path

from tallystick.disputes.coordinators.manifest import files_of
from tallystick.disputes.evidence.claim_statement import ClaimStatement
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.parties.prover import ClaimOffer


def offer_of(folder: Path, statement: ClaimStatement | None = None) -> ClaimOffer:
    """The offer of a finished run, of recorded calls of a model, or of an opening of all operators.

    `statement` is that of the folder, if it was read already. Raises `UnavailableError` if there is none,
    `MalformedError` if its claim is not readable, and `UsageError` for calls that could not be defended because their
    graph does not accept them.
    """
    found = statement or statement_at(folder)
    log = found.tree
    found.require_disputable()
    return ClaimOffer(log.root.removeprefix("sha256:"), log.size, files_of(folder), found.levels)
