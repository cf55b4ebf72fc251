"""What vLLM has sent of the answers to one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.serving.exchanges import is_token_ids


@dataclass
class SeenAnswer:
    """One answer as far as it has arrived, with vLLM's `finish_reason` (`abort` until it ends) and `stop_reason`."""

    ids: list[int] = field(default_factory=list)
    finish: str = "abort"
    stop: Any = None

    def add(self, choice: Mapping[str, Any]) -> None:
        """Add a choice of a response, or of one chunk of a stream."""
        if is_token_ids(choice.get("token_ids")):
            self.ids += choice["token_ids"]
        if choice.get("finish_reason") is not None:
            self.finish, self.stop = choice["finish_reason"], choice.get("stop_reason")


@dataclass
class SeenAnswers:
    """The answers of one response by their index, and the tokens of the prompt."""

    prompt: list[int] | None = None
    answers: dict[int, SeenAnswer] = field(default_factory=dict)
    failed: bool = False

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a response, or one chunk of a stream. Chat gives the prompt's tokens once, text with each choice."""
        self.failed |= "error" in part
        choices = part.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            number = choice.get("index")
            self._add_prompt(choice)
            self.answers.setdefault(number, SeenAnswer()).add(choice)
        self._add_prompt(part)

    @property
    def is_ending(self) -> bool:
        """Whether some answer has ended."""
        return any(each.finish != "abort" for each in self.answers.values())

    def arrived(self) -> SeenAnswers:
        """These answers without those of which no token has arrived."""
        kept = {number: each for number, each in self.answers.items() if each.ids}
        return SeenAnswers(self.prompt, kept, self.failed)

    def _add_prompt(self, part: Mapping[str, Any]) -> None:
        if is_token_ids(part.get("prompt_token_ids")):
            self.prompt = part["prompt_token_ids"]
