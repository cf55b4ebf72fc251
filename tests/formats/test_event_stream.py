"""Server-sent events: what every reader takes apart in the same way is read, and nothing else."""

from __future__ import annotations

import pytest

from tallystick.core.errors import MalformedError
from tallystick.formats.responses_api import events_of

ONE, TWO, END = b'data: {"a": 1}\n\n', b'event: b\ndata: {"b": 2}\n\n', b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "stream",
    [
        ONE + TWO + END,
        ONE + TWO,
        (ONE + TWO + END).replace(b"\n", b"\r\n"),
        b": comment\n\n" + ONE + b": \n" + TWO + END,
        b"\n" + ONE + b"\n\n" + TWO + END + b"\n",
        b'data:{"a":\ndata: 1}\n\n' + TWO + b"data: [DONE]",
        b"id: 3\nretry: 5\n" + ONE + TWO + END + b": bye\n\n",
        ONE + b"event: b\nid: 4\n" + TWO.partition(b"\n")[2] + b"data:[DONE]\n\n",
    ],
)
def test_events_are_read_up_to_the_end(stream: bytes) -> None:
    assert [(name, dict(data)) for name, data in events_of(stream)] == [("", {"a": 1}), ("b", {"b": 2})]


@pytest.mark.parametrize(
    "stream",
    [
        b"\xef\xbb\xbf" + ONE,
        ONE.replace(b"\n\n", b"\r\r"),
        b": \rdata: {}\r\r" + ONE,
        ONE + END + TWO,
        ONE + END + END,
        ONE + b'data: {"c": 3}',
        ONE + b'data: {"c": 3}\n',
        b'data: {"a": 1, "a": 2}\n\n',
        b"data: [1]\n\n",
        b"data: \xff\n\n",
        b"data: NaN\n\n",
        b"data\n\n",
        b"data: [DONE]EVIL\n\n",
    ],
)
def test_what_readers_take_apart_in_different_ways_is_refused(stream: bytes) -> None:
    with pytest.raises(MalformedError, match="stream"):
        list(events_of(stream))
