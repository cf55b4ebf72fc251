"""What a record says about a state without holding it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tallystick.transcripts.door import DigestText, Document


class BucketSummary(Document):
    """The bucket digest of a state, and the blob that holds its boundary hints, if any were logged."""

    digest: DigestText
    hints: DigestText | None = None


class StateSummary(Document):
    """The summaries taken of one state; which of them is decided by the recipe."""

    exact: DigestText | None = None
    fp16_rne: BucketSummary | None = None
    grid: BucketSummary | None = None
    projection: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$", max_length=65536)] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was recorded of this state."""
        return not self.model_dump(exclude_none=True)
