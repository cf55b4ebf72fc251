"""The text of an answer while its tokens arrive: what can be sent, what is held back, and where it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Decode = Callable[[Sequence[int]], str]
UNFINISHED: Final = "\ufffd"
"""What a decoder returns for the first bytes of an incomplete character."""


class AnswerText:
    """Decodes tokens into text piece by piece; the joined pieces are the answer's text, streamed or not.

    A piece is held back while its last character is incomplete, or while its end could be the start of a stop text. The
    answer ends before the first stop text.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, tuple(stops)
        self._ids: list[int] = []
        self._context, self._given = 0, 0
        self._held = ""
        self.is_stopped = False

    def add(self, token: int) -> str:
        """The text that can be sent after one more token."""
        self._ids.append(token)
        new = self._decoded_since()
        if not new or new.endswith(UNFINISHED):
            return ""
        self._context, self._given = self._given, len(self._ids)
        return self._release(new)

    def close(self) -> str:
        """The text that was held back; call it after the last token."""
        if self.is_stopped:
            return ""
        text = self._release(self._decoded_since())
        rest, self._held = self._held, ""
        return text if self.is_stopped else text + rest

    def _decoded_since(self) -> str:
        """The text of the tokens not sent yet, decoded after the tokens before them: decoding depends on context."""
        before = self._decode(self._ids[self._context : self._given])
        return self._decode(self._ids[self._context :])[len(before) :]

    def _release(self, new: str) -> str:
        text = self._held + new
        starts = [start for start in (text.find(stop) for stop in self._stops) if start >= 0]
        if starts:
            self.is_stopped, self._held = True, ""
            return text[: min(starts)]
        held = self._beginning_of_a_stop(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _beginning_of_a_stop(self, text: str) -> int:
        """How many characters at the end of `text` are the start of a stop text."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
