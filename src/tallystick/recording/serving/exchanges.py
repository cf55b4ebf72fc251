"""Requests and answers as a proxy saw them, and the receipts that a server issued."""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal

from tallystick.core.canonical_json import INTEGER_MAX, Json, encode
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, TallyError, UnavailableError
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.formats.completions import CompletionReader, Finish, ReadChoice, is_token_ids
from tallystick.formats.receipt import (
    PROXY,
    RECEIPT_BYTES_MAX,
    TOKENS_MAX,
    Answer,
    EngineStatement,
    Request,
    Sampler,
    SignedReceipt,
    Tokens,
)
from tallystick.formats.requests import DRAWING, form_of_request, nonce_of, stated_settings
from tallystick.formats.store.log import read_lines
from tallystick.recording.receipts import ReceiptChain
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
            self._latest = max(self._latest, signed.receipt.sequence)
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


# One request and its answer as a proxy saw them, and their receipts.
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


class ModelTokenizer:
    """The tokenizer of a model, which one thread uses at a time: `turn` is held meanwhile."""

    def __init__(self, language_model: TorchLanguageModel) -> None:
        self._model, self.turn = language_model, Lock()

    def encode_text(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        with self.turn:
            return self._model.encode_text(text)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: str | None = None) -> list[int]:
        """The tokens of messages and tools in the chat template; raises `UsageError` if it refuses them."""
        with self.turn:
            return self._model.encode_chat(messages, tools)


class Exchange:
    """A request (`body`, without `tally_nonce`) and the part of its response that has arrived.

    Raises `Problem` for fields that no receipt can state.
    """

    def __init__(self, body: Mapping[str, Any], tokenizer: ModelTokenizer | None) -> None:
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

    def close(self, chain: ReceiptChain, book: ReceiptBook, *, is_whole: bool) -> list[SignedReceipt]:
        """The receipts of the choices; none for answers that are not text, or of which nothing arrived.

        A second call returns an empty list. Raises `OSError` if the journal cannot be written.
        """
        choices, name = self._reader.choices, self.id or f"proxied-{secrets.token_hex(16)}"
        text = {} if self._is_over else {number: choice for number, choice in choices.items() if choice.is_text}
        self._is_over = True
        issued = []
        for number, choice in sorted(text.items()):
            if is_whole or choice.text or choice.ids:
                own_name = f"{name}-{number}" if len(choices) > 1 else name
                signed, _ = chain.sign(**self._statements(own_name, number, choice, is_whole))
                book.add(signed, self._started_ns)
                issued.append(signed)
        return issued

    def _statements(self, name: str, number: int, choice: ReadChoice, is_whole: bool) -> dict[str, Any]:
        """What the receipt of a choice says, by the names of its fields."""
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
        return {
            "request": Request(id=name, prompt=prompt, max_tokens=limit, nonce=self._nonce),
            "answer": Answer(tokens=tokens, finish=finish),
            "sampler": self._sampler(number),
            "engine": EngineStatement(  # only where the tokens come from is known
                name=PROXY,
                version=source,
                device=UNKNOWN,
                attention=UNKNOWN,
                kv_cache=UNKNOWN,
                environment=digest("environment", encode({"proxy": 1})),
            ),
        }

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
