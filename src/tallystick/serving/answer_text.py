"""The text of an answer while its tokens arrive: what can be given out, what is held back, and where it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Decode = Callable[[Sequence[int]], str]
UNFINISHED: Final = "\ufffd"
"""What a decoder gives for bytes that are not yet a whole character."""


class AnswerText:
    """Turns tokens into text piece by piece; the pieces joined are the text, streamed or not.

    A piece is held back while its last character is incomplete, or while its end could begin a stop text. At a stop
    text the answer ends, and the stop text itself is left out.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, tuple(stops)
        self._ids: list[int] = []
        self._context, self._given = 0, 0
        self._held = ""
        self.is_stopped = False

    def add(self, token: int) -> str:
        """The text that may be given out after one more token."""
        self._ids.append(token)
        new = self._decoded_since()
        if not new or new.endswith(UNFINISHED):
            return ""
        self._context, self._given = self._given, len(self._ids)
        return self._release(new)

    def close(self) -> str:
        """The rest: what was held back, when no token follows."""
        if self.is_stopped:
            return ""
        text = self._release(self._decoded_since())
        rest, self._held = self._held, ""
        return text if self.is_stopped else text + rest

    def _decoded_since(self) -> str:
        """What the tokens not yet given add to the text, decoded behind the ones before them."""
        before = self._decode(self._ids[self._context : self._given])
        return self._decode(self._ids[self._context :])[len(before) :]

    def _release(self, new: str) -> str:
        text = self._held + new
        found = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            return text[: min(found)]
        held = self._beginning_of_a_stop(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _beginning_of_a_stop(self, text: str) -> int:
        """How many characters at the end of `text` begin a stop text."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
