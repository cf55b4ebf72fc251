"""Receipts of answers that vLLM's engine computes, with the rows that its workers keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final

from tallystick.errors import UnavailableError
from tallystick.recorders.receipts import ReceiptIssuer
from tallystick.serving.exchanges import is_token_ids
from tallystick.serving.receipts import ReceiptBook
from tallystick.serving.vllm.asking import Asked
from tallystick.serving.vllm.receipts import finish_of
from tallystick.serving.vllm.seen import UNFINISHED
from tallystick.serving.vllm.wire import Kept
from tallystick.transcripts.completion_form import ReadChoice
from tallystick.transcripts.receipt import Answer, Request, SignedReceipt, Tokens

SECONDS_MAX: Final = 60.0
"""How long a worker may take to hand over rows."""


Encode = Callable[[Sequence[Mapping[str, Any]], str | None], list[int]]


class Workers:
    """The methods of `TallyWorkerExtension`, called through vLLM's engine client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def describe(self) -> dict[str, Any]:
        """What runs, from the first worker."""
        told: dict[str, Any] = await self._call("tally_describe")
        return told

    async def watch(self, *arguments: Any) -> None:
        """Keep rows from now on."""
        await self._call("tally_watch", *arguments)

    async def take(self, engine_id: str, tokens: int) -> Kept:
        """What is kept of the first tokens of a request, which is then dropped."""
        return Kept.of(await self._call("tally_take", engine_id, tokens))

    async def drop(self, engine_id: str) -> None:
        """Free the rows of a request."""
        await self._call("tally_drop", engine_id)

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return (await self._client.collective_rpc(method, SECONDS_MAX, arguments))[0]
        except Exception as error:  # vLLM raises a bare `Exception` if a worker's method fails
            line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise UnavailableError(f"{method}: {line[:300]}") from error


class AnswerIssuer:
    """Issues the receipts of one model served by vLLM; `context` is the most tokens of prompt and answer.

    `encode` gives the tokens of messages and tools by the model's own template, which vLLM's have to be.
    """

    def __init__(
        self, workers: Workers, issuer: ReceiptIssuer, book: ReceiptBook, context: int, encode: Encode
    ) -> None:
        self.workers, self.issuer, self.book, self.context = workers, issuer, book, context
        self._encode, self._turn = encode, Lock()

    async def issue(
        self, asked: Asked, prompt: list[int] | None, answers: Mapping[int, ReadChoice]
    ) -> list[SignedReceipt]:
        """The receipts of the answers to a request, in the order of their index.

        Raises `UnavailableError` if vLLM did not give the tokens or their rows, `OSError` if the journal cannot be
        written.
        """
        if asked.tools is not None and prompt != await asyncio.to_thread(self._own_prompt, asked):
            raise UnavailableError("vLLM shows the tools otherwise than the model's template, so the prompt is another")
        return [await self._issue(asked, prompt, number, answer) for number, answer in sorted(answers.items())]

    def _own_prompt(self, asked: Asked) -> list[int]:
        with self._turn:
            return self._encode(asked.body["messages"], asked.tools)

    async def drop(self, asked: Asked) -> None:
        """Free the rows of a request whose answers get no receipts."""
        for number in range(asked.choices):
            await self.workers.drop(asked.engine_id(number))

    async def _issue(self, asked: Asked, prompt: list[int] | None, number: int, answer: ReadChoice) -> SignedReceipt:
        ids = answer.ids or []
        if prompt is None or not is_token_ids(ids):
            raise UnavailableError("vLLM did not give the tokens of the prompt and of the answer")
        request = Request(
            id=asked.choice_id(number),
            prompt=Tokens.of(prompt),
            max_tokens=self._limit(asked, len(prompt), answer),
            nonce=asked.nonce,
        )
        kept = await self.workers.take(asked.engine_id(number), len(ids))
        stated = Answer(
            tokens=Tokens.of(ids), finish=finish_of(answer.finish or UNFINISHED, answer.stop, asked.stop_tokens)
        )
        sampler = asked.sampler_of(number)
        issued = await asyncio.to_thread(self.issuer.issue, request, stated, sampler, kept.rows, kept.batch)
        self.book.add(issued.signed, asked.started_ns)
        return issued.signed

    def _limit(self, asked: Asked, prompt: int, answer: ReadChoice) -> int:
        """What was asked for, or the rest of the context; the length of an answer that was ended by its limit."""
        if answer.finish == "length":
            return len(answer.ids or ())
        return self.context - prompt if asked.limit is None else asked.limit
