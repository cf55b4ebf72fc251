"""Server-sent events, read strictly: what readers would split or skip in different ways is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tallystick.commitments.encoding import parse
from tallystick.errors import MalformedError

BYTES_MAX: Final = 64 << 20
DONE: Final = "[DONE]"
BOM: Final = "\ufeff"


class StreamEvent(NamedTuple):
    """The name of an event, empty if it has none, and its object."""

    name: str
    data: dict[str, Any]


def events_of(stream: bytes) -> Iterator[StreamEvent]:
    """The events up to `[DONE]`.

    Raises `MalformedError` for a byte order mark, a carriage return alone, what is no UTF-8 or no JSON object, an event
    behind `[DONE]`, and one that the stream breaks off.
    """
    try:
        text = stream.decode()
    except UnicodeDecodeError:
        raise MalformedError("stream: no UTF-8") from None
    lines = text.replace("\r\n", "\n")
    if "\r" in lines or lines.startswith(BOM):
        raise MalformedError("stream: a carriage return alone, or a byte order mark: readers differ about these")
    is_done = False
    *events, rest = lines.split("\n\n")
    if _fields_of(rest)[1] not in (None, DONE):
        raise MalformedError("stream: it breaks off inside an event")
    for event in events:
        name, data = _fields_of(event)
        if data is None:
            continue
        if is_done:
            raise MalformedError(f"stream: an event behind {DONE}")
        is_done = data == DONE
        if not is_done:
            value = parse(data.encode(), "stream", bytes_max=BYTES_MAX)
            if not isinstance(value, Mapping):
                raise MalformedError("stream: an event that is no object")
            yield StreamEvent(name, dict(value))


def _fields_of(event: str) -> tuple[str, str | None]:
    """The name of an event, and the lines of its data; None without data. Comments are skipped."""
    name, data = "", list[str]()
    for line in event.split("\n"):
        field, _, value = line.partition(":")
        if field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
    return name, "\n".join(data).strip() if data else None
