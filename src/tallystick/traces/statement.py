"""What a trace is about, and the root of its events: the statement that stands beside them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from tallystick.commitments.digests import Digest
from tallystick.documents.document import Count, DigestText, Document
from tallystick.transcripts.claim import Log

Text = Annotated[str, Field(min_length=1, max_length=256)]
TRACE_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._\-]{0,63}"
"""What the folder of a trace in a run directory may be called, as a regular expression."""


class TraceStatement(Document):
    """The header of a trace and the root of its events.

    `cluster` is the digest of the devices, `graph` the root of the graph whose nodes events name, `claim` the digest of
    the claim of the run. `clock` says which clock the events were timed by, and `began` the microseconds from
    1970-01-01 (UTC) to its zero. `source` says what reported the events.
    """

    trace: Literal["events"] = "events"
    version: Literal[1] = 1
    cluster: DigestText
    graph: DigestText | None = None
    claim: DigestText | None = None
    clock: Text
    began: Count | None = None
    source: Text
    events: Log

    @property
    def identity(self) -> Digest:
        """The digest that identifies this trace."""
        return self.digest_as("trace")
