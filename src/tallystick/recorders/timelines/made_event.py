"""Makes an event of what a profiler reported; whatever does not fit the format is refused in one line."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from tallystick.errors import MalformedError
from tallystick.traces.event import TraceEvent

NAME_MAX: Final = 256


def made_event(name: str, **fields: Any) -> TraceEvent:
    """The event, its name cut to what the format holds; raises `MalformedError` naming the event and the field."""
    told = name.encode("utf-8", "replace").decode()[:NAME_MAX] or "unnamed"
    try:
        return TraceEvent(name=told, **fields)
    except ValidationError as error:
        from tallystick.documents.explained import explain

        raise MalformedError(f"event {told[:80]!a} of the profiler: {explain(error, TraceEvent)}") from None
