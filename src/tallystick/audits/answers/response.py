"""What a customer received: a bare receipt, or a whole response in OpenAI's form with a receipt.

All of it comes from the provider. The provider signed the receipt; the rest is compared with it.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from tallystick.core.documents import Document
from tallystick.formats.completions import CALLS_MAX, Remark
from tallystick.formats.receipt import TOKENS_MAX, SignedReceipt, TokenCount, TokenIds
from tallystick.formats.requests import Form

NOT_DELIVERED: Final = "whether the text that was delivered is that of the tokens: give the response"
NOT_BILLED: Final = "what was billed: give the response with its usage"
BARE: Final = "what was billed, and whether the delivered text is that of the tokens: give the whole response"
ANSWERS_MAX: Final = 64
SUMMED: Final = ("completion_tokens", "total_tokens")
TOPS_MAX: Final = 128
TOKEN_BYTES_MAX: Final = 1024
NUMBERED: Final = re.compile(r"(.+)-(0|[1-9][0-9]{0,6})")

Octet = Annotated[int, Field(ge=0, le=255)]


def split_name(request_id: str) -> tuple[str, int | None]:
    """The name of a request, and the index of the answer if it has one: `name-0`, `name-1`, …."""
    match = NUMBERED.fullmatch(request_id)
    return (request_id, None) if match is None else (match[1], int(match[2]))


class ResponsePart(Document):
    """Part of a response; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class Usage(ResponsePart):
    """The billed token counts."""

    prompt_tokens: TokenCount | None = None
    completion_tokens: TokenCount | None = None
    total_tokens: TokenCount | None = None

    def without(self, others: int) -> Usage:
        """The bill without `others`, the tokens of other answers."""
        left = {name: count - others for name in SUMMED if (count := getattr(self, name)) is not None}
        return self.model_copy(update=left)


class DeliveredLogprob(ResponsePart):
    """The log probability of a token, and of the most likely ones."""

    logprob: float
    token: str | None = None
    bytes: Annotated[tuple[Octet, ...], Field(max_length=TOKEN_BYTES_MAX)] | None = None
    top_logprobs: Annotated[tuple[DeliveredLogprob, ...], Field(max_length=TOPS_MAX)] = ()


class DeliveredLogprobs(ResponsePart):
    """Log probabilities: those of a chat completion in `content`, those of a completion in `token_logprobs`."""

    content: Annotated[tuple[DeliveredLogprob, ...], Field(max_length=TOKENS_MAX)] | None = None
    tokens: Annotated[tuple[str, ...], Field(max_length=TOKENS_MAX)] | None = None
    token_logprobs: Annotated[tuple[float, ...], Field(max_length=TOKENS_MAX)] | None = None
    top_logprobs: Annotated[tuple[dict[str, float] | None, ...], Field(max_length=TOKENS_MAX)] | None = None

    @property
    def listed(self) -> tuple[DeliveredLogprob, ...]:
        """One entry for each token; a completion names the most likely ones by text."""
        if self.content is not None:
            return self.content
        numbers = self.token_logprobs or ()
        names = self.tokens or (None,) * len(numbers)
        tops = self.top_logprobs or (None,) * len(numbers)
        if not len(names) == len(tops) == len(numbers):
            return ()
        return tuple(
            DeliveredLogprob(
                logprob=number,
                token=name,
                top_logprobs=tuple(DeliveredLogprob(logprob=value, token=text) for text, value in (top or {}).items()),
            )
            for number, name, top in zip(numbers, names, tops, strict=True)
        )


class DeliveredChoice(ResponsePart):
    """One answer as it was delivered; `content` is None if nothing that could hold text was there."""

    content: str | None = None
    reasoning: str | None = None
    calls: Annotated[tuple[tuple[str, str], ...], Field(max_length=CALLS_MAX)] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: TokenIds | None = None
    logprobs: DeliveredLogprobs | None = None


class Response(ResponsePart):
    """A response with its receipt; for a bare receipt nothing else is known.

    A response with several answers is split into one of these per answer, `number` from 0. `form` is the form in which
    it was read, and `remarks` are what its reader noticed.
    """

    receipt: SignedReceipt
    id: Annotated[str, Field(max_length=256)] | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    usage: Usage | None = None
    prompt_token_ids: TokenIds | None = None
    choices: Annotated[tuple[DeliveredChoice, ...], Field(max_length=1)] = ()
    number: int = 0
    answers: int = 1
    form: Form | None = None
    remarks: tuple[Remark, ...] = ()

    @property
    def is_bare(self) -> bool:
        """Whether only the receipt is known."""
        fields = (self.id, self.model, self.usage, self.prompt_token_ids, self.form)
        return not (self.choices or self.remarks or any(field is not None for field in fields))

    @property
    def choice(self) -> DeliveredChoice:
        """The only answer, or an empty one."""
        return self.choices[0] if self.choices else DeliveredChoice()

    @property
    def request_id(self) -> str | None:
        """The request id that the receipt must state; None if the response has no id."""
        return self.id if self.id is None or self.answers == 1 else f"{self.id}-{self.number}"
