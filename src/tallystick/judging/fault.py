"""Who is at fault, as a referee, a vote or a clock finds."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """The end of a dispute; `NOBODY` means that it could not be decided, and both bonds go back."""

    PROVER = "prover"
    CHALLENGER = "challenger"
    NOBODY = "nobody"
