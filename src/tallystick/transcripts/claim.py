"""The claim that a spec, run in an environment, gave a transcript. Its canonical bytes have one digest."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from tallystick.commitments.digests import Digest
from tallystick.documents.document import Count, DigestText, Document, Positive, Reason

WITHDRAWN_MAX: Final = 1024


class Log(Document):
    """The root and the number of leaves of an RFC 6962 tree."""

    root: DigestText
    size: Count


class Withdrawn(Document):
    """Steps of a loop whose graph was found, after they were recorded, not to be what the loop did; and why."""

    first: Positive
    last: Positive
    reason: Reason


class Claim(Document):
    """What a prover signs and publishes; the signature and the log entry are over these bytes."""

    claim: Literal["training"] = "training"
    version: Literal[1] = 1
    spec: DigestText
    environment: DigestText
    data: DigestText | None = None
    transcript: Log
    trace: Log
    final_state: DigestText
    weights: DigestText | None = None
    """The state digest of the weights in the final state, as a model card names them; claims of old have none."""
    no_graph: Reason | None = None
    """Why the recorder of a loop captured no step graph, or withdrew that of the spec; left out if neither."""
    withdrawn: Annotated[tuple[Withdrawn, ...], Field(min_length=1, max_length=WITHDRAWN_MAX)] | None = None
    """Steps of a loop that have a graph in their records and cannot be replayed, in order."""

    def why_withdrawn(self, step: int) -> str | None:
        """Why `step` cannot be replayed although its record has a graph; `None` if nothing is said against it."""
        return next((each.reason for each in self.withdrawn or () if each.first <= step <= each.last), None)

    @property
    def identity(self) -> Digest:
        """The digest that identifies this claim."""
        return self.digest_as("claim")
