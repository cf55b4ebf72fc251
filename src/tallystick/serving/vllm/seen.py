"""What vLLM has sent of the answers to one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallystick.serving.exchanges import is_token_ids
from tallystick.transcripts.completion_form import CompletionReader, Form, ReadChoice

UNFINISHED = "abort"
"""vLLM's reason for an answer that did not come to its end."""


class SeenAnswers:
    """The answers of one response by their index, as far as they have arrived, and the tokens of the prompt.

    Raises `MalformedError` for what vLLM would not send.
    """

    def __init__(self, form: Form) -> None:
        self._reader = CompletionReader(form)
        self.failed = False

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a response, or one chunk of a stream. Chat gives the prompt's tokens once, text with each choice."""
        self.failed |= "error" in part
        self._reader.add(part)

    @property
    def prompt(self) -> list[int] | None:
        """The tokens of the prompt, if they have come."""
        ids = self._reader.fields.get("prompt_token_ids")
        return ids if is_token_ids(ids) else None

    @property
    def answers(self) -> Mapping[int, ReadChoice]:
        """The answers so far."""
        return self._reader.choices

    @property
    def arrived(self) -> Mapping[int, ReadChoice]:
        """The answers of which a token has arrived."""
        return {number: each for number, each in self.answers.items() if each.ids}

    @property
    def is_ending(self) -> bool:
        """Whether some answer has ended."""
        return any(each.finish is not None for each in self.answers.values())
