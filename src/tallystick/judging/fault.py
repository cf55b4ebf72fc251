"""Who is at fault, as decided by a referee, a vote or a timeout."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """The outcome of a dispute; `NOBODY` means that it could not be decided and both bonds are returned."""

    PROVER = "prover"
    CHALLENGER = "challenger"
    NOBODY = "nobody"
