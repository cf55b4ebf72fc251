"""Requests and answers as a proxy saw them, and the receipts that a server issued, numbered and linked."""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, Protocol

from tallystick.core.canonical_json import INTEGER_MAX, Json, encode
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, TallyError, UnavailableError, UsageError
from tallystick.formats.completions import CompletionReader, Finish, ReadChoice, is_token_ids
from tallystick.formats.receipt import (
    PROXY,
    RECEIPT_BYTES_MAX,
    TOKENS_MAX,
    Answer,
    EngineStatement,
    Receipt,
    Request,
    Sampler,
    SignedReceipt,
    Tokens,
)
from tallystick.formats.requests import DRAWING, form_of_request, nonce_of, stated_settings
from tallystick.formats.signing import SigningKey, sign_receipt
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.receipts import ReceiptLog
from tallystick.recording.serving.errors import AnswerSpans, invalid, refused

# The receipts that a server has issued, in the order of their numbers, for customers and auditors.

KEPT_MAX: Final = 4096
KEPT_BYTES_MAX: Final = 256 << 20
PAGE: Final = 1000
"""The most receipts in one listing."""


class ReceiptBook:
    """Receipts by request and by number. The latest are in memory; the journal, if there is one, has all.

    New ones are reported as `spans`, if there are any.
    """

    def __init__(self, journal: Path | None = None, spans: AnswerSpans | None = None) -> None:
        self._journal, self._spans = journal, spans
        self._kept: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._bytes = self._latest = 0
        self._lock = Lock()
        if journal is not None and journal.exists():
            for line in read_lines(journal, RECEIPT_BYTES_MAX):
                self._keep(SignedReceipt.from_bytes(line, journal.name))

    def add(self, signed: SignedReceipt, started_ns: int) -> None:
        """Add a receipt of an answer that was asked for at `started_ns`, nanoseconds since 1970."""
        self._keep(signed)
        if self._spans is not None:
            self._spans.ended(signed, started_ns)

    def close(self) -> None:
        """Send the spans that still wait."""
        if self._spans is not None:
            self._spans.close()

    def _keep(self, signed: SignedReceipt) -> None:
        """Keep a receipt in memory; the oldest ones are dropped."""
        line = signed.to_bytes()
        with self._lock:
            self._latest = signed.receipt.sequence
            self._kept[signed.receipt.request.id] = signed.receipt.sequence, line
            self._bytes += len(line)
            while len(self._kept) > KEPT_MAX or (self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1):
                self._bytes -= len(self._kept.popitem(last=False)[1][1])

    def of(self, request_id: str) -> bytes:
        """The canonical JSON of the receipt of a request; raises `UnavailableError` if it is not in memory."""
        with self._lock:
            if request_id not in self._kept:
                raise UnavailableError("no receipt of this request is held")
            return self._kept[request_id][1]

    def after(self, sequence: int) -> list[bytes]:
        """The receipts with numbers above `sequence`, in order, at most `PAGE`."""
        if self._journal is not None and self._journal.exists():
            # line k of a journal is receipt number k; a line that is still being written is skipped
            lines = islice(read_lines(self._journal, RECEIPT_BYTES_MAX), sequence, max(sequence, self._latest))
            return list(islice(lines, PAGE))
        with self._lock:
            return [line for number, line in self._kept.values() if number > sequence][:PAGE]


# Receipts without hidden states: numbered, linked and signed by one key; any engine may have computed the answers.


@dataclass(frozen=True)
class ReceiptContents:
    """The contents of one receipt, before it is numbered and signed."""

    request: Request
    answer: Answer
    sampler: Sampler
    engine: EngineStatement
    started_ns: int


class ReceiptChain:
    """Signs receipts for the model `model` in the order of the calls; thread-safe.

    Raises `UsageError` if another process writes to the journal, or if the journal belongs to another key.
    """

    def __init__(
        self,
        model: Digest,
        key: SigningKey,
        journal: Path | None = None,
        *,
        private: bool = False,
        spans: AnswerSpans | None = None,
    ) -> None:
        self.model, self.key, self._is_private = model, key, private
        self._log = None if journal is None else ReceiptLog(journal)
        self._last: Receipt | None = None
        if self._log is not None and self._log.last is not None:
            if self._log.last.key != key.public:
                self._log.close()
                raise UsageError(f"{self._log.path}: the journal of another key; give each key its own")
            self._last = self._log.last.receipt
        self.book = ReceiptBook(journal, spans)
        self._lock = Lock()

    def issue(self, contents: ReceiptContents) -> SignedReceipt:
        """Sign a receipt and write it to the journal, then return it; raises `OSError` if it cannot be written."""
        with self._lock:
            # a private chain states digests and counts of tokens, not the ids
            hidden = {"ids": None} if self._is_private else {}
            prompt, tokens = (
                tokens.model_copy(update=hidden) for tokens in (contents.request.prompt, contents.answer.tokens)
            )
            receipt = Receipt(
                model=self.model,
                request=contents.request.model_copy(update={"prompt": prompt}),
                answer=contents.answer.model_copy(update={"tokens": tokens}),
                sampler=contents.sampler,
                engine=contents.engine,
                sequence=self._last.sequence + 1 if self._last else 1,
                previous=self._last.identity if self._last else None,
            )
            signed = sign_receipt(receipt, self.key)
            if self._log is not None:
                self._log.append(signed)
            self._last = receipt
            self.book.add(signed, contents.started_ns)
        return signed

    def close(self) -> None:
        """Close the journal."""
        if self._log is not None:
            self._log.close()
        self.book.close()


# One request and its answer as a proxy saw them, and the contents of their receipts.
#
# A proxy sees text; it sees token ids only if the server sends them. Without them, the receipt binds the answer by the
# digest of its text, as a blob: text alone does not determine the generated tokens. The proxy encodes the prompt itself
# if it has the model's tokenizer and template; if not, the receipt binds the digest of the prompt or messages as
# canonical JSON. `engine.version` says which of the three was done. A proxy does not see what the server computed.

Source = Literal["token ids by the server", "prompt made again, digest of the answer's text", "digest of the text"]
UNKNOWN: Final = "unknown"
IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_\-]{1,120}")
FINISHES: Final[Mapping[str, Finish]] = {
    "stop": "end",
    "length": "length",
    "eos_token": "end",
    "stop_sequence": "stop",  # the names of text-generation-inference
}


class Tokenizes(Protocol):
    """Encodes text as the served model does."""

    def encode_text(self, text: str) -> list[int]:
        """The tokens of a prompt."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of messages in the chat template."""


class Exchange:
    """A request (`body`, without `tally_nonce`) and the part of its response that has arrived.

    Raises `Problem` for fields that no receipt can state.
    """

    def __init__(self, body: Mapping[str, Any], tokenizer: Tokenizes | None) -> None:
        self.body = {name: value for name, value in body.items() if name != "tally_nonce"}
        self.id: str | None = None
        self._tokenizer, self._started_ns = tokenizer, time.time_ns()
        self._reader = CompletionReader(form_of_request(self.body))
        self._is_over = False
        self._prompt: Json = {name: self.body[name] for name in ("messages", "prompt") if name in self.body}
        try:
            self._nonce = nonce_of(body)
        except MalformedError as error:
            raise refused(error) from None
        try:
            self._sampler(0)
            encode(self._prompt)
        except (MalformedError, TypeError) as error:
            raise invalid(str(error)) from None

    def add(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Add a response, or one chunk of a stream; returns it under the id that the receipt states.

        That is the server's own, unless it is missing or a receipt cannot state it.
        """
        own_id = part.get("id")
        is_usable = isinstance(own_id, str) and IDENTIFIER.fullmatch(own_id)
        if self.id is None:
            self.id = own_id if is_usable else f"proxied-{secrets.token_hex(16)}"
        try:
            self._reader.add(part)
        except MalformedError:  # what has not the form that the request asks for gets no receipt
            self._is_over = True
        return dict(part) if is_usable else {**part, "id": self.id}

    @property
    def is_finished(self) -> bool:
        """Whether some choice has a finish reason."""
        return self._reader.is_ending and not self._is_over

    def close(self, *, is_whole: bool) -> list[ReceiptContents]:
        """The receipt contents of each choice; none for answers that are not text, or of which nothing arrived.

        A second call returns an empty list.
        """
        choices, name = self._reader.choices, self.id or f"proxied-{secrets.token_hex(16)}"
        text = {} if self._is_over else {number: choice for number, choice in choices.items() if choice.is_text}
        contents = [
            self._contents(f"{name}-{number}" if len(choices) > 1 else name, number, choice, is_whole)
            for number, choice in sorted(text.items())
            if is_whole or choice.text or choice.ids
        ]
        self._is_over = True
        return contents

    def _contents(self, name: str, number: int, choice: ReadChoice, is_whole: bool) -> ReceiptContents:
        source, prompt, tokens = self._tokens(choice)
        finish: Finish = "cancelled"
        if is_whole or choice.finish is not None:
            finish = FINISHES.get(choice.finish or "", "stop")
            has_stops = self.body.get("stop") or self.body.get("stop_token_ids")
            finish = "stop" if finish == "end" and has_stops else finish
        # without a requested limit: the answer's length if it ended by length, else the largest limit
        limit = self.body.get("max_completion_tokens") or self.body.get("max_tokens")
        if not isinstance(limit, int) or not 1 <= limit <= TOKENS_MAX:
            limit = tokens.count if finish == "length" else TOKENS_MAX
        request = Request(id=name, prompt=prompt, max_tokens=limit, nonce=self._nonce)
        answer, engine = Answer(tokens=tokens, finish=finish), engine_behind(source)
        return ReceiptContents(request, answer, self._sampler(number), engine, self._started_ns)

    def _tokens(self, choice: ReadChoice) -> tuple[Source, Tokens, Tokens]:
        """Where the tokens come from; those of the prompt and of the answer, or the digest of their text."""
        prompt_ids, ids = self._reader.prompt_ids, choice.ids
        if prompt_ids is not None and is_token_ids(ids):
            return "token ids by the server", Tokens.of(prompt_ids), Tokens.of(ids)
        text = (choice.text or "").encode(errors="surrogatepass")
        answer = Tokens(count=self._billed("completion_tokens"), digest=digest("blob", text), over="text")
        try:
            made = self._encoded_prompt()
        except (TallyError, LookupError, TypeError, ValueError):
            made = None
        if made is not None:
            return "prompt made again, digest of the answer's text", Tokens.of(made), answer
        prompt = Tokens(count=self._billed("prompt_tokens"), digest=digest("blob", encode(self._prompt)), over="text")
        return "digest of the text", prompt, answer

    def _encoded_prompt(self) -> list[int] | None:
        """The prompt's tokens by the proxy's own tokenizer; None without one.

        Raises `TypeError` or `LookupError` if it is not one prompt of text or tokens.
        """
        if self._tokenizer is None:
            return None
        if "messages" in self.body:
            messages = [{"role": m["role"], "content": m["content"]} for m in self.body["messages"]]
            return self._tokenizer.encode_chat(messages)
        prompt = self.body["prompt"]
        if isinstance(prompt, list) and len(prompt) == 1 and not is_token_ids(prompt):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self._tokenizer.encode_text(prompt)
        if not is_token_ids(prompt):
            raise TypeError("not one prompt")
        return list(prompt)

    def _sampler(self, number: int) -> Sampler:
        """The requested settings; the form is `unknown`, because the proxy does not know how the server draws.

        The seed is 0 if none was requested or it is not a count. Answer `number` of several has seed + number.
        """
        given = {name: value for name, value in self.body.items() if value or name in DRAWING}
        settings = stated_settings(given)
        seed = settings.get("seed", 0)
        is_count = isinstance(seed, int) and 0 <= seed <= INTEGER_MAX - number
        own = {"seed": seed + number if is_count else 0, "top_k": max(0, settings.get("top_k", 0)), "form": UNKNOWN}
        return Sampler.from_json({**settings, **own}, "request")

    def _billed(self, name: str) -> int:
        """The count in `usage` if there is only one choice; 0 if there are several or the server states none."""
        count = (self._reader.fields.get("usage") or {}).get(name)
        if not isinstance(count, int) or not 0 <= count <= TOKENS_MAX:
            return 0
        return count if len(self._reader.choices) == 1 else 0


def engine_behind(source: Source) -> EngineStatement:
    """The engine statement of a proxy: everything is unknown except where the tokens come from."""
    return EngineStatement(
        name=PROXY,
        version=source,
        device=UNKNOWN,
        attention=UNKNOWN,
        kv_cache=UNKNOWN,
        environment=digest("environment", encode({"proxy": 1})),
    )
