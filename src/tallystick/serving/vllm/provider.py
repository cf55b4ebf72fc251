"""The provider of a model that vLLM serves: what it checks at the start, and what it needs to issue receipts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp

from tallystick.attestation.signing import SigningKey
from tallystick.errors import UnavailableError, UsageError
from tallystick.frameworks.model_cards import card_of
from tallystick.frameworks.torch.generation.language_models import chat_tokens, end_tokens_in, load_tokenizer
from tallystick.frameworks.torch.generation.model_directory import DTYPES
from tallystick.http.keys import check_key, read_keys
from tallystick.http.problems import Problem
from tallystick.recorders.receipts import ReceiptIssuer, RecordSettings
from tallystick.serving.application import ServerOptions, add_key, add_receipts, answer_errors_alike
from tallystick.serving.receipts import ReceiptBook
from tallystick.serving.telemetry import answer_spans
from tallystick.serving.vllm.issuing import AnswerIssuer, Workers
from tallystick.serving.vllm.settings import KEY, ReceiptVariables
from tallystick.serving.vllm.start import check_start
from tallystick.tolerances.fingerprints.settings import FingerprintSettings
from tallystick.tolerances.fingerprints.standard import standard_fingerprints
from tallystick.transcripts.model_card import ModelCard
from tallystick.transcripts.receipt import EngineStatement

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

    def admits(self, request: Request) -> bool:
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
    told = await workers.describe()
    card = await asyncio.to_thread(_card, Path(told["model"]), config.dtype)
    settings = RecordSettings(_fingerprints(variables, card, told["layers"]), private=variables.private)
    engine = EngineStatement.from_json(told["engine"], "vllm")
    issuer = ReceiptIssuer(card, _key(variables.key), settings, variables.receipts, engine=engine)
    await workers.watch(list(settings.layers), settings.seed)  # also of no layers: it frees vLLM's own generators
    LOG.info("tallystick: receipts of model %s, signed by key %s", card.identity, issuer.public)
    options, book = _options(state.args, variables), _book(state.args, variables)
    tokenizer = await asyncio.to_thread(load_tokenizer, Path(told["model"]))
    answers = AnswerIssuer(workers, issuer, book, told["context"], partial(chat_tokens, tokenizer))
    app = _own_routes(issuer.public, card, book, options)
    ends = await asyncio.to_thread(end_tokens_in, Path(told["model"]))
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


def _book(args: Any, variables: ReceiptVariables) -> ReceiptBook:
    """The receipts of the model that vLLM serves under the first of its names."""
    names = args.served_model_name or [args.model]
    return ReceiptBook(variables.receipts, answer_spans(str(names[0])))


def _options(args: Any, variables: ReceiptVariables) -> ServerOptions:
    """The keys of vLLM's customers, and those of auditors."""
    keys = frozenset(key for key in (args.api_key or [os.environ.get("VLLM_API_KEY")]) if key)
    return ServerOptions("", keys, frozenset() if variables.auditors is None else read_keys(variables.auditors))


def _own_routes(key: str, card: ModelCard, book: ReceiptBook, options: ServerOptions) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    answer_errors_alike(app)
    add_key(app, key, card.identity, card)
    add_receipts(app, book, options)
    return app
