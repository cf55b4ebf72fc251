"""What a customer received: a bare receipt, or a whole response in OpenAI's form with a receipt.

All of it comes from the provider. The provider signed the receipt; the rest is compared with it.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, model_validator

from tallystick.documents.document import Document
from tallystick.transcripts.receipt import TOKENS_MAX, SignedReceipt, TokenCount, TokenIds

REASONS: Final = {"end": "stop", "stop": "stop", "length": "length", "cancelled": "stop"}
"""OpenAI's finish reason for each reason of a receipt."""


NOT_DELIVERED: Final = "whether the text that was delivered is that of the tokens: give the response"
NOT_BILLED: Final = "what was billed: give the response with its usage"
BARE: Final = "what was billed, and whether the delivered text is that of the tokens: give the whole response"
ANSWERS_MAX: Final = 64
NUMBERED: Final = re.compile(r"(.+)-(0|[1-9][0-9]{0,6})")


def split_name(request_id: str) -> tuple[str, int | None]:
    """The name of a request, and the index of the answer if it has one: `name-0`, `name-1`, …."""
    found = NUMBERED.fullmatch(request_id)
    return (request_id, None) if found is None else (found[1], int(found[2]))


class ResponsePart(Document):
    """Part of a response; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class Usage(ResponsePart):
    """The billed token counts."""

    prompt_tokens: TokenCount
    completion_tokens: TokenCount
    total_tokens: TokenCount | None = None

    def without(self, others: int) -> Usage:
        """The bill without `others`, the tokens of other answers."""
        total = None if self.total_tokens is None else self.total_tokens - others
        return self.model_copy(update={"completion_tokens": self.completion_tokens - others, "total_tokens": total})


class DeliveredFunction(ResponsePart):
    """A function that is to be called, its arguments as JSON text."""

    name: str
    arguments: str


class DeliveredCall(ResponsePart):
    """A call in a message."""

    function: DeliveredFunction


class DeliveredMessage(ResponsePart):
    """The message of a chat completion."""

    content: str | None = None
    tool_calls: Annotated[tuple[DeliveredCall, ...], Field(max_length=ANSWERS_MAX)] | None = None


class DeliveredLogprob(ResponsePart):
    """The log probability of a token, and of the most likely ones."""

    logprob: float
    top_logprobs: Annotated[tuple[DeliveredLogprob, ...], Field(max_length=ANSWERS_MAX)] = ()


class DeliveredLogprobs(ResponsePart):
    """Log probabilities: those of a chat completion in `content`, those of a completion in `token_logprobs`."""

    content: Annotated[tuple[DeliveredLogprob, ...], Field(max_length=TOKENS_MAX)] | None = None
    token_logprobs: Annotated[tuple[float, ...], Field(max_length=TOKENS_MAX)] | None = None

    @property
    def of_tokens(self) -> tuple[float, ...]:
        """One number for each token."""
        return tuple(each.logprob for each in self.content or ()) or self.token_logprobs or ()

    @property
    def of_the_top(self) -> tuple[tuple[float, ...], ...]:
        """For each token those of the most likely ones; a completion names these by text alone: none."""
        listed = tuple(tuple(top.logprob for top in each.top_logprobs) for each in self.content or ())
        return listed or ((),) * len(self.of_tokens)


class DeliveredChoice(ResponsePart):
    """One answer as it was delivered."""

    message: DeliveredMessage | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: TokenIds | None = None
    logprobs: DeliveredLogprobs | None = None

    @model_validator(mode="after")
    def _is_one_text(self) -> Self:
        content = None if self.message is None else self.message.content
        if None not in (content, self.text) and content != self.text:
            raise ValueError("text and message.content are not alike")
        return self

    @property
    def calls(self) -> tuple[tuple[str, str], ...]:
        """The names and arguments of the functions that are to be called."""
        found = None if self.message is None else self.message.tool_calls
        return tuple((each.function.name, each.function.arguments) for each in found or ())

    @property
    def content(self) -> str | None:
        """The text, from `text` or `message.content`."""
        if self.message is None or self.message.content is None:
            return self.text
        return self.message.content


class Response(ResponsePart):
    """A response with its receipt; for a bare receipt nothing else is known.

    A response with several answers is split into one of these per answer, `number` from 0.
    """

    receipt: SignedReceipt
    id: Annotated[str, Field(max_length=256)] | None = None
    model: str | None = None
    usage: Usage | None = None
    prompt_token_ids: TokenIds | None = None
    choices: Annotated[tuple[DeliveredChoice, ...], Field(max_length=1)] = ()
    number: int = 0
    answers: int = 1

    @property
    def is_bare(self) -> bool:
        """Whether only the receipt is known."""
        return self.model_fields_set <= {"receipt"}

    @property
    def choice(self) -> DeliveredChoice:
        """The only answer, or an empty one."""
        return self.choices[0] if self.choices else DeliveredChoice()

    @property
    def request_id(self) -> str | None:
        """The request id that the receipt must state; None if the response has no id."""
        return self.id if self.id is None or self.answers == 1 else f"{self.id}-{self.number}"
