"""One event of a trace: what a device did, when, and for which operator of the graph."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from tallystick.commitments.encoding import decode
from tallystick.documents.document import Count, DigestText, Document
from tallystick.errors import MalformedError
from tallystick.traces.cluster import DeviceName

EVENT_BYTES_MAX: Final = 1 << 20
FUSED_MAX: Final = 1 << 16
EventKind = Literal["challenge", "checkpoint", "collective", "kernel", "memcpy", "response", "sample", "sync"]
EventName = Annotated[str, Field(min_length=1, max_length=256)]
Members = Annotated[tuple[DeviceName, ...], Field(min_length=1, max_length=4096)]


class TraceEvent(Document):
    """An event: `start` and `duration` in nanoseconds of the clock of the trace.

    `operator` is the number of a node of the graph, and `fused` are further nodes that the same kernel computed.
    `moved` are the bytes of a copy or a collective, `members` the devices of a collective, `memory` the bytes in use
    on the device after the event, `subject` the digest of the anchor, challenge or response that it is about.
    """

    # in ascending order, so that pydantic writes the canonical bytes (RFC 8785) itself: there are no floats
    device: DeviceName
    duration: Count
    fused: Annotated[tuple[Count, ...], Field(min_length=1, max_length=FUSED_MAX)] | None = None
    kind: EventKind
    members: Members | None = None
    memory: Count | None = None
    moved: Count | None = None
    name: EventName
    operator: Count | None = None
    start: Count
    step: Count | None = None
    stream: Count | None = None
    subject: DigestText | None = None

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        if (self.kind == "collective") != (self.members is not None):
            raise ValueError("a collective has members, and no other event has")
        if self.members is not None and (list(self.members) != sorted(set(self.members))):
            raise ValueError("members stand once each, in ascending order")
        if self.members is not None and self.device not in self.members:
            raise ValueError("the device is one of the members of its collective")
        if self.fused is not None and self.operator is None:
            raise ValueError("further operators stand beside a first one")
        return self

    @property
    def end(self) -> int:
        """When it ended, in nanoseconds."""
        return self.start + self.duration

    @property
    def operators(self) -> tuple[int, ...]:
        """The nodes that it computed, none where it names none."""
        return () if self.operator is None else (self.operator, *(self.fused or ()))

    def to_bytes(self) -> bytes:  # noqa: D102
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)


_READER: Final = TypeAdapter(TraceEvent).validator


def read_event(line: bytes, what: str) -> TraceEvent:
    """Read one canonical event; raises `MalformedError` naming `what` and the field."""
    problem = "not in canonical form (a null or an equivalent spelling)"
    try:
        event: TraceEvent = _READER.validate_json(line[: EVENT_BYTES_MAX + 1])
        if len(line) <= EVENT_BYTES_MAX and event.to_bytes() == line:
            return event
    except ValidationError as error:
        from tallystick.documents.explained import explain

        problem = explain(error)
    decode(line, what, bytes_max=EVENT_BYTES_MAX)  # an error of the JSON itself is reported first
    raise MalformedError(f"{what}: {problem}")
