"""The records of a training run, the summaries of states in them, and which record may follow which."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from tallystick.core.digests import Digest
from tallystick.core.documents import Count, DigestText, Document, Number, Positive, Reason, read_canonical
from tallystick.core.errors import MalformedError, ProofError
from tallystick.formats.optimizers import StatedRules
from tallystick.formats.spec import Spec

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


# The order of a transcript: which record may follow which. A verifier applies these rules to every record of a run.


@dataclass(frozen=True)
class Chain:
    """The state of a transcript after the records read so far.

    `state` is the last step, `anchored` the step of the last anchor; both are -1 before the first.
    """

    spec: Spec
    opened: bool = False
    state: int = -1
    anchored: int = -1
    awaits_anchor: bool = False
    summary: StateSummary | None = None

    def follow(self, record: Record) -> Chain:
        """The chain after one more record; raises `ProofError` naming the step that does not fit."""
        if isinstance(record, HeaderRecord):
            return self._begin(record)
        if not self.opened:
            raise ProofError(f"the transcript starts with a {record.kind} record instead of its header")
        if isinstance(record, AnchorRecord):
            if record.index != self.state:
                raise ProofError(f"anchor {record.index} stands after step {self.state}")
            may_end_here = self.spec.recipe is None and self.anchored < self.state  # a custom loop may end at any step
            if not (self.awaits_anchor or may_end_here):
                raise ProofError(f"anchor {record.index} is not one the spec asks for")
            summary = record.summary if self.summary is None else self.summary
            return replace(self, anchored=self.state, awaits_anchor=False, summary=summary)
        self._check_is_next(record.index)
        if isinstance(record, FailedRecord):
            return self
        if record.data != self.spec.data_root:
            raise ProofError(f"step {record.index} names another data root than the spec")
        if record.pre != self.summary:
            raise ProofError(f"step {record.index} does not start from the state in which step {self.state} ended")
        anchored = record.index % self.spec.recorded.anchor_stride == 0 or record.index == self._last()
        return replace(self, state=record.index, summary=record.post, awaits_anchor=anchored)

    def finish(self) -> None:
        """Raise `ProofError` unless the transcript may end here."""
        last = self._last()
        if self.state < 0 or self.awaits_anchor or (last is None and self.anchored != self.state):
            raise ProofError("the transcript ends without the anchor of its last state")
        if last is not None and self.state != last:
            raise ProofError(f"the transcript ends at step {self.state} of {last}")

    def _begin(self, record: HeaderRecord) -> Chain:
        if self.opened:
            raise ProofError("a second header stands in the middle of the transcript")
        if record.spec != self.spec.identity:
            raise ProofError("the header names another spec than spec.json")
        if record.data != self.spec.data_root:
            raise ProofError("the header names another data root than the spec")
        for name in Knobs.model_fields:
            if getattr(record.knobs, name) != getattr(self.spec.recorded, name):
                raise ProofError(f"the header's {name} is not the spec's")
        return replace(self, opened=True, awaits_anchor=True, state=0)

    def _check_is_next(self, index: int) -> None:
        if self.awaits_anchor:
            raise ProofError(f"the anchor of step {self.state} is missing")
        if index != self.state + 1:
            raise ProofError(f"step {index} stands after step {self.state}")
        last = self._last()
        if last is not None and index > last:
            raise ProofError(f"step {index} stands behind the last step of the spec")

    def _last(self) -> int | None:
        return None if self.spec.recipe is None else self.spec.recipe.training.steps
