"""A response with several choices, split into one response per answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tallystick.answers.response import ANSWERS_MAX, DeliveredChoice, Response, ResponsePart, Usage
from tallystick.errors import MalformedError
from tallystick.transcripts.receipt import SignedReceipt, TokenIds


class ChoicesResponse(ResponsePart):
    """A response with several choices and one receipt for each."""

    receipts: Annotated[tuple[SignedReceipt, ...], Field(min_length=2, max_length=ANSWERS_MAX)]
    id: Annotated[str, Field(max_length=256)] | None = None
    model: str | None = None
    usage: Usage | None = None
    prompt_token_ids: TokenIds | None = None
    choices: Annotated[tuple[DeliveredChoice, ...], Field(max_length=ANSWERS_MAX)] = ()

    def each(self) -> tuple[Response, ...]:
        """One response per answer; each is billed for the total minus the tokens of the other answers."""
        if self.choices and len(self.choices) != len(self.receipts):
            raise MalformedError(f"choices: {len(self.choices)}, and there are {len(self.receipts)} receipts")
        return tuple(self._one(number) for number in range(len(self.receipts)))

    def _one(self, number: int) -> Response:
        others = sum(each.receipt.answer.tokens.count for i, each in enumerate(self.receipts) if i != number)
        usage = None if self.usage is None else self.usage.without(others)
        return Response(
            receipt=self.receipts[number],
            id=self.id,
            model=self.model,
            usage=usage,
            prompt_token_ids=self.prompt_token_ids,
            choices=self.choices[number : number + 1],
            number=number,
            answers=len(self.receipts),
        )
