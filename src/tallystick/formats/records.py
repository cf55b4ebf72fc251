"""The records of a training run, and the summaries of states in them."""

from __future__ import annotations

import base64
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from tallystick.core.digests import Digest
from tallystick.core.documents import Count, DigestText, Document, Number, Positive, Reason, read_canonical
from tallystick.core.errors import MalformedError
from tallystick.formats.optimizers import StatedRules

# Summaries of a state in a record, in place of the state itself.


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


# The records of a training run, in the order in which they are appended.
#
#     header · anchor 0 · step 1 · step 2 · … · anchor k · … · step n · anchor n
#
# Step `s` (1-based) turns state `s − 1` into state `s`; anchor `a` holds state `a`. A step that crashed leaves a
# `failed` record in front of the record of its successful repetition. Records carry no clock.

RECORD_BYTES_MAX = 1 << 20
Text = Annotated[str, Field(max_length=1024)]
RefText = Annotated[str, Field(min_length=1, max_length=1024)]


class Knobs(Document):
    """The consensus knobs (Arknet §3.3) of the spec, repeated in the header so that a reader sees them first."""

    bucket_mode: Literal["fp16_rne", "grid", "both"]
    grid_eps: float
    loss_decimals: Count
    anchor_stride: Positive


class HeaderRecord(Document):
    """Record 0: spec, environment and data that the run commits to before its first step."""

    kind: Literal["header"] = "header"
    version: Literal[1] = 1
    spec: DigestText
    environment: DigestText
    data: DigestText | None = None
    knobs: Knobs


class Batch(Document):
    """The batch of a step: positions in the committed data, or the digest of its tensors."""

    split: Literal["train", "validation"] = "train"
    indices: tuple[Count, ...] | None = None
    digest: DigestText | None = None


class StepRecord(Document):
    """One optimizer step: its batch, the summaries of the states before and after, and what was observed.

    `learning_rates` lists the rates of all parameter groups if they differ. `graph` names the step graph, where it is
    not the one of the spec, and `no_graph` says why the step of a loop with step graphs has none. `optimizer` lists the
    rules of the parameter groups, where a loop had changed the settings that its spec states.
    """

    kind: Literal["step"] = "step"
    index: Positive
    data: DigestText | None = None
    batch: Batch
    pre: StateSummary
    post: StateSummary
    loss: Number
    gradient_norm: Number | None = None
    activation: tuple[Number, Number] | None = None
    learning_rate: float
    learning_rates: Annotated[tuple[float, ...], Field(min_length=2, max_length=4096)] | None = None
    tags: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_\-]{1,32}$")], ...] = ()
    graph: DigestText | None = None
    no_graph: Reason | None = None
    optimizer: StatedRules | None = None

    @model_validator(mode="after")
    def _has_a_graph_or_none(self) -> Self:
        if self.graph is not None and self.no_graph is not None:
            raise ValueError("a step has a graph, or the reason why it has none")
        return self


class AnchorRecord(Document):
    """A full state saved as a file, with its summary; a verifier replays from here."""

    kind: Literal["anchor"] = "anchor"
    index: Count
    file: Annotated[str, Field(pattern=r"^anchors/step_[0-9]{8,}\.safetensors$")]
    digest: DigestText
    summary: StateSummary


class FailedRecord(Document):
    """A step that crashed; it has no loss."""

    kind: Literal["failed"] = "failed"
    index: Positive
    error: Text


class OperatorRecord(Document):
    """One operator of a step: the digests of its inputs and outputs, by their references in the graph.

    These records form a transcript of their own, one per node in the order of the graph (`Opening`).
    """

    kind: Literal["operator"] = "operator"
    node: Count
    operator: Annotated[str, Field(pattern=r"^[a-z]+(\.\w+)+$", max_length=128)]
    inputs: dict[RefText, DigestText]
    outputs: dict[RefText, DigestText]


class CallRecord(Document):
    """One call of a model: the state digests of its inputs and outputs."""

    kind: Literal["call"] = "call"
    index: Positive
    inputs: DigestText
    outputs: DigestText


class TraceEntry(Document):
    """The seconds that one step took, and those spent on recording, by the prover's clock."""

    document_bytes_max: ClassVar[int] = RECORD_BYTES_MAX

    step: Positive
    seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    recording_seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


Record = HeaderRecord | StepRecord | AnchorRecord | FailedRecord
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def read_record(line: bytes, what: str) -> Record:
    """Read one canonical record; raises `MalformedError` naming `what` and the field."""
    return read_canonical(_RECORD.validate_json, line, what, RECORD_BYTES_MAX)


def batch_file(digest: Digest) -> str:
    """The path inside a run directory of the batch whose tensors have the state digest `digest`."""
    return f"batches/{digest.removeprefix('sha256:')}.safetensors"


def graph_file(root: Digest) -> str:
    """The path inside a run directory of a step graph that records name by its root."""
    return f"graphs/{root.removeprefix('sha256:')}.json"


def anchor_file(index: int) -> str:
    """The path of anchor `index` inside a run directory."""
    return f"anchors/step_{index:08d}.safetensors"
