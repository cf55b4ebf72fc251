"""The claim: this spec, in this environment, gave this transcript. It is bytes with one digest."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tallystick.commitments.digests import Digest
from tallystick.documents.document import Count, DigestText, Document


class Log(Document):
    """The root and the number of leaves of an RFC 6962 tree."""

    root: DigestText
    size: Count


class Claim(Document):
    """What a prover signs and publishes; a signature and a log entry come on top of these bytes."""

    claim: Literal["training"] = "training"
    version: Literal[1] = 1
    spec: DigestText
    environment: DigestText
    data: DigestText | None = None
    transcript: Log
    trace: Log
    final_state: DigestText
    no_graph: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Why the step graph in the spec is not what the loop did, where the recorder noticed; left out otherwise."""

    @property
    def identity(self) -> Digest:
        """The digest by which everybody names this claim."""
        return self.digest_as("claim")
