"""The provider of a model that vLLM serves: what it checks, what was sent, and the receipts it issues."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.http.problems import Problem, check_key, read_keys
from tallystick.engines.model_cards import card_of
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, end_tokens_in, load_tokenizer
from tallystick.engines.torch.generation.model_files import DTYPES
from tallystick.formats.claims import ModelCard
from tallystick.formats.completions import ReadChoice, is_token_ids
from tallystick.formats.fingerprints import FingerprintSettings, standard_fingerprints
from tallystick.formats.receipt import Answer, EngineStatement, Request, SignedReceipt, Tokens
from tallystick.formats.signing import SigningKey
from tallystick.recording.receipts import ReceiptIssuer, RecordSettings
from tallystick.recording.serving.application import ServerOptions, add_key, add_receipts, answer_errors_alike
from tallystick.recording.serving.errors import answer_spans
from tallystick.recording.serving.exchanges import ModelTokenizer, ReceiptBook
from tallystick.recording.serving.vllm.asking import Asked
from tallystick.recording.serving.vllm.receipts import Kept, finish_of
from tallystick.recording.serving.vllm.start import KEY, ReceiptVariables, check_start

# Receipts of answers that vLLM's engine computes, with the rows that its workers keep.

SECONDS_MAX: Final = 60.0
"""How long a worker may take to hand over rows."""
UNFINISHED: Final = "abort"
"""vLLM's reason for an answer that did not come to its end."""


class Workers:
    """The methods of `TallyWorkerExtension`, called through vLLM's engine client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the first worker answers; raises `UnavailableError` if one fails or takes too long."""
        try:
            return (await self._client.collective_rpc(method, SECONDS_MAX, arguments))[0]
        except Exception as error:  # vLLM raises a bare `Exception` if a worker's method fails
            line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise UnavailableError(f"{method}: {line[:300]}") from error


class AnswerIssuer:
    """Issues the receipts of one model served by vLLM; `context` is the most tokens of prompt and answer.

    `tokenizer` has the model's own template, by which vLLM has to show messages and tools.
    """

    def __init__(
        self, workers: Workers, issuer: ReceiptIssuer, book: ReceiptBook, context: int, tokenizer: ModelTokenizer
    ) -> None:
        self.workers, self.issuer, self.book, self.context = workers, issuer, book, context
        self._tokenizer = tokenizer

    async def issue(
        self, asked: Asked, prompt: list[int] | None, answers: Mapping[int, ReadChoice]
    ) -> list[SignedReceipt]:
        """The receipts of the answers to a request, in the order of their index.

        Raises `UnavailableError` if vLLM did not give the tokens or their rows, `OSError` if the journal cannot be
        written.
        """
        if asked.tools is not None:
            own = await asyncio.to_thread(self._tokenizer.encode_chat, asked.body["messages"], asked.tools)
            if prompt != own:
                line = "vLLM shows the tools otherwise than the model's template, so the prompt is another"
                raise UnavailableError(line)
        return [await self._issue(asked, prompt, number, answer) for number, answer in sorted(answers.items())]

    async def drop(self, asked: Asked) -> None:
        """Free the rows of a request whose answers get no receipts."""
        for number in range(asked.choices):
            await self.workers.call("tally_drop", asked.engine_id(number))

    async def _issue(self, asked: Asked, prompt: list[int] | None, number: int, answer: ReadChoice) -> SignedReceipt:
        ids = answer.ids or []
        if prompt is None or not is_token_ids(ids):
            raise UnavailableError("vLLM did not give the tokens of the prompt and of the answer")
        # without a requested limit, the rest of the context; vLLM may have ended the answer before either
        limit = self.context - len(prompt) if asked.limit is None else asked.limit
        limit = len(ids) if answer.finish == "length" else limit
        request = Request(
            id=asked.choice_id(number),
            prompt=Tokens.of(prompt),
            max_tokens=limit,
            nonce=asked.nonce,
        )
        kept = Kept.of(await self.workers.call("tally_take", asked.engine_id(number), len(ids)))
        finish = finish_of(answer.finish or UNFINISHED, answer.stop, asked.stop_tokens)
        stated = Answer(tokens=Tokens.of(ids), finish=finish)
        sampler = asked.sampler_of(number)
        issued = await asyncio.to_thread(self.issuer.issue, request, stated, sampler, kept.rows, kept.batch)
        self.book.add(issued.signed, asked.started_ns)
        return issued.signed


# The provider of a model that vLLM serves: what it checks at the start, and what it needs to issue receipts.

LOG: Final = logging.getLogger("vllm.tallystick")


@dataclass(frozen=True)
class VllmProvider:
    """Issues receipts; `app` serves them.

    `defaults` are sampling settings of the model's generation configuration, `ends` its end tokens.
    """

    issuer: AnswerIssuer
    app: ASGIApp
    defaults: Mapping[str, Any]
    keys: frozenset[str]
    ends: frozenset[int] = frozenset()

    def admits(self, request: HttpRequest) -> bool:
        """Whether vLLM will admit this client."""
        try:
            if self.keys:
                check_key(request, self.keys)
        except Problem:
            return False
        return True

    def close(self) -> None:
        """Close the journal."""
        self.issuer.issuer.close()
        self.issuer.book.close()


async def start_provider(state: Any, variables: ReceiptVariables) -> VllmProvider:
    """The provider of a server of vLLM by the state of its application.

    Raises:
        UsageError: vLLM was started with an option under which no receipt is true, or a variable is wrong.
        UnavailableError: a worker does not answer, or the model is no directory.
    """
    check_server(state.args, state.vllm_config)
    workers, config = Workers(state.engine_client), state.vllm_config.model_config
    worker = await workers.call("tally_describe")
    card = await asyncio.to_thread(_card, Path(worker["model"]), config.dtype)
    settings = RecordSettings(_fingerprints(variables, card, worker["layers"]), private=variables.private)
    engine = EngineStatement.from_json(worker["engine"], "vllm")
    issuer = ReceiptIssuer(card, _key(variables.key), settings, variables.receipts, engine=engine)
    # also of no layers: it frees vLLM's own generators
    await workers.call("tally_watch", list(settings.layers), settings.seed)
    LOG.info("tallystick: receipts of model %s, signed by key %s", card.identity, issuer.public)
    customers = frozenset(key for key in (state.args.api_key or [os.environ.get("VLLM_API_KEY")]) if key)
    auditors = frozenset() if variables.auditors is None else read_keys(variables.auditors)
    options = ServerOptions("", customers, auditors)
    names = state.args.served_model_name or [state.args.model]
    book = ReceiptBook(variables.receipts, answer_spans(str(names[0])))
    library_tokenizer = await asyncio.to_thread(load_tokenizer, Path(worker["model"]))
    tokenizer = ModelTokenizer(TorchLanguageModel(None, library_tokenizer, card))
    answers = AnswerIssuer(workers, issuer, book, worker["context"], tokenizer)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    answer_errors_alike(app)
    add_key(app, issuer.public, card.identity, card)
    add_receipts(app, book, options)
    ends = await asyncio.to_thread(end_tokens_in, Path(worker["model"]))
    return VllmProvider(answers, app, config.get_diff_sampling_param(), options.keys, ends)


def check_server(args: Any, config: Any) -> None:
    """Raise `UsageError` that names the option under which no receipt would be true."""
    try:
        check_start(config)
    except ValueError as error:
        raise UsageError(str(error).removeprefix("tally: ")) from None
    for option, is_set, reason in REFUSED:
        if is_set(args):
            raise UsageError(f"start vLLM without {option}: {reason}")


def _is_set(name: str, *neutral: Any) -> Callable[[Any], bool]:
    return lambda args: getattr(args, name, None) not in (None, "", *neutral)


REFUSED: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("--api-server-count above 1", _is_set("api_server_count", 0, 1), "one process numbers the receipts"),
    ("--chat-template", _is_set("chat_template"), "the model root names the template of the directory"),
    ("--default-chat-template-kwargs", _is_set("default_chat_template_kwargs", {}), "no customer knows the prompt"),
    ("--tokenizer", lambda args: args.tokenizer not in (None, args.model), "the model root names the directory's"),
    ("--hf-overrides", _is_set("hf_overrides", {}), "the model root names the configuration of the directory"),
    ("--exclude-tools-when-tool-choice-none", _is_set("exclude_tools_when_tool_choice_none", False), "tools are shown"),
    ("--reasoning-parser", _is_set("reasoning_parser"), "the delivered text would not be that of the tokens"),
)
"""Options of the server, and why no receipt is true under them."""


def _card(model: Path, dtype: Any) -> ModelCard:
    if not model.is_dir():
        raise UnavailableError(f"{model}: no directory; give vLLM the directory of the model")
    for name, known in DTYPES.items():
        if known == dtype:
            return card_of(model, name)
    raise UsageError(f"start vLLM with --dtype float32, bfloat16 or float16: {dtype} has no model card")


def _fingerprints(
    variables: ReceiptVariables, card: ModelCard, visible: Collection[int]
) -> tuple[FingerprintSettings, ...]:
    """The standard fingerprints of the layers that vLLM shows, or those of the layers that were asked for."""
    if variables.layers is not None:
        return standard_fingerprints(card.layers, card.dtype, variables.layers) if variables.layers else ()
    standard = standard_fingerprints(card.layers, card.dtype)
    wanted = standard[0].layers
    shown = tuple(layer for layer in wanted if layer in visible)
    if shown == wanted:
        return standard
    LOG.warning("tallystick: layers %s are recorded, of %s; with --enforce-eager all are", shown, wanted)
    return standard_fingerprints(card.layers, card.dtype, shown)


def _key(path: Path | None) -> SigningKey:
    if path is None:
        LOG.warning("tallystick: no %s: receipts are signed by a key that is forgotten at the end", KEY)
        return SigningKey.generate()
    if not path.is_file():
        raise UsageError(f"{KEY}={path}: not there; `tally new-key {quote(str(path))}` makes one")
    return SigningKey.read(path)
