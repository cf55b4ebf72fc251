"""Summaries of a state in a record, in place of the state itself."""

from __future__ import annotations

import base64
from typing import Annotated

from pydantic import Field

from tallystick.documents.document import DigestText, Document
from tallystick.errors import MalformedError


class BucketSummary(Document):
    """The bucket digest of a state, and the blob that holds its boundary hints, if any were logged."""

    digest: DigestText
    hints: DigestText | None = None


class StateSummary(Document):
    """The summaries of one state; the recipe determines which of them are present."""

    exact: DigestText | None = None
    fp16_rne: BucketSummary | None = None
    grid: BucketSummary | None = None
    projection: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$", max_length=65536)] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no summary is present."""
        return not self.model_dump(exclude_none=True)


def encode_sketch(sketch: bytes) -> str:
    """A sketch as base64 text for a record."""
    return base64.b64encode(sketch).decode()


def decode_sketch(text: str) -> bytes:
    """The bytes of a recorded sketch; raises `MalformedError` if the text is no base64."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise MalformedError("a projection summary is no base64") from None
