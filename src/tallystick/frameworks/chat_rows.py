"""Conversations as rows: a chat template in Jinja's sandbox, and a `tokenizer.json` run by the library `tokenizers`.

What is trained of a turn is what the template shows of it behind its generation prompt, up to the end of the turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.nesting import loose_json
from tallystick.datasets.conversations import read_conversations
from tallystick.datasets.corpus import Corpus
from tallystick.datasets.row_layout import UNTRAINED, Labelled
from tallystick.datasets.rows import (
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    CommittedRows,
    check_row,
    order_of,
)
from tallystick.datasets.shards import hash_shards, list_shards
from tallystick.datasets.tokenizer import TOKENIZER_BYTES_MAX
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.extras import not_installed
from tallystick.transcripts.rows import RowsRecipe

try:
    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from tokenizers import Tokenizer as Pipeline
except ModuleNotFoundError as missing:
    raise not_installed(missing.name or "tokenizers") from None

Messages = Sequence[Mapping[str, str]]
CONFIG_FILE = "tokenizer_config.json"


class ChatFiles:
    """The tokenizer and the chat template of a model directory, by their digests.

    Raises `UnavailableError` where a file is not there, `MalformedError` where it is not read.
    """

    def __init__(self, directory: Path) -> None:
        self.tokenizer = read_document(directory / TOKENIZER_FILE, TOKENIZER_BYTES_MAX)
        self.template, config = _template(directory)
        self._special = {name: _content(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        try:
            self._pipeline = Pipeline.from_buffer(self.tokenizer)
        except ValueError as error:
            raise MalformedError(f"{TOKENIZER_FILE}: the library tokenizers does not read it: {error}") from None
        self._pipeline.no_truncation()
        self._pipeline.no_padding()
        extensions = [_Generation, "jinja2.ext.loopcontrols"]
        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        sandbox.globals["raise_exception"] = _refuse
        sandbox.filters["tojson"] = lambda value, **form: json.dumps(value, ensure_ascii=False, **form)
        try:
            self._rendering = sandbox.from_string(self.template.decode())
        except (TemplateError, ValueError) as error:
            raise MalformedError(f"{TEMPLATE_FILE}: no template: {error}") from None

    @property
    def digests(self) -> tuple[Digest, Digest]:
        """Those of the tokenizer's file and of the template."""
        return digest("blob", self.tokenizer), digest("blob", self.template)

    @property
    def pad(self) -> int:
        """The token that the configuration pads with; 0 where it names none."""
        named = self._special["pad_token"]
        number = self._pipeline.token_to_id(named) if named else None
        return 0 if number is None else int(number)

    def labelled(self, messages: Messages, recipe: RowsRecipe) -> Labelled:
        """One conversation as tokens and labels, cut to the length of a row.

        Raises `MalformedError` where the template refuses it, or shows an earlier turn otherwise before a later one.
        """
        text = self._shown(messages)
        found = self._pipeline.encode(text, add_special_tokens=False)
        tokens = np.array(found.ids[: recipe.length], np.int64)
        trained = np.full(tokens.size, recipe.trained == "all")
        for start, end in self._spans(messages, text) if recipe.trained == "assistant" else ():
            inside = [start <= first < last <= end for first, last in found.offsets[: recipe.length]]
            trained |= np.array(inside, bool)
        return Labelled(tokens, np.where(trained, tokens, UNTRAINED))

    def _spans(self, messages: Messages, text: str) -> Iterator[tuple[int, int]]:
        """Where the assistant's turns stand in the text, behind their generation prompts."""
        for number, turn in enumerate(messages):
            if turn["role"] == "assistant":
                before = self._shown(messages[:number], add_generation_prompt=True)
                whole = self._shown(messages[: number + 1])
                if not (whole.startswith(before) and text.startswith(whole)):
                    raise MalformedError(f"the chat template shows turn {number} otherwise once another follows it")
                yield len(before), len(whole)

    def _shown(self, messages: Messages, **settings: Any) -> str:
        given = {name: value for name, value in self._special.items() if value is not None}
        try:
            return self._rendering.render(messages=[*messages], **given, **settings)
        except (TemplateError, TypeError) as error:
            raise MalformedError(f"the chat template refuses a conversation: {error}") from None


class _Generation(Extension):
    """The mark `{% generation %}` around what the assistant says; its body is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        """The statements inside of the mark."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _template(directory: Path) -> tuple[bytes, dict[str, Any]]:
    settings = _settings(directory / CONFIG_FILE)
    if (directory / TEMPLATE_FILE).is_file():
        return read_document(directory / TEMPLATE_FILE), settings
    held = settings.get("chat_template")
    if not isinstance(held, str):
        raise UnavailableError(f"{directory}: no chat template: neither {TEMPLATE_FILE} nor one in {CONFIG_FILE}")
    return held.encode(), settings


def _settings(path: Path) -> dict[str, Any]:
    """The settings of a tokenizer, of whose numbers none is interpreted: there are some beyond every machine's."""
    if not path.is_file():
        return {}
    try:
        found = loose_json(read_document(path).decode(), parse_int=str, parse_float=str)
    except ValueError as error:
        raise MalformedError(f"{path.name}: no valid JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _content(value: Any) -> str | None:
    held = value.get("content") if isinstance(value, dict) else value
    return held if isinstance(held, str) else None


def _refuse(reason: object) -> None:
    raise TemplateError(str(reason))


def check_made_again(rows: CommittedRows, places: Sequence[int], corpus: Path, model: Path) -> None:
    """Render and tokenize the conversations of some rows again, with the verifier's own files.

    Raises:
        ProofError: naming the first row that its conversation does not give.
        UnavailableError: the corpus, the tokenizer or the template is not the one that the rows recipe names.
        MalformedError: a shard or the template is not what it should be.
    """
    recipe, files = rows.recipe, ChatFiles(model)
    if files.digests != (recipe.tokenizer, recipe.template):
        raise UnavailableError(f"{model}: its tokenizer or chat template is not that of the rows")
    found = Corpus(tuple(each.shard for each in hash_shards(list_shards(corpus), None))).commit.digest
    if found != recipe.corpus:
        raise UnavailableError(f"{corpus} is the corpus {found}, and the rows are of {recipe.corpus}")
    order, held = order_of(recipe), dict[int, Labelled]()
    wanted = {int(order[place]) for row in places for place in _places_read(rows, row)}
    number = -1
    for number, messages in enumerate(read_conversations(corpus, recipe.field)):
        if number in wanted:
            held[number] = files.labelled(messages, recipe)
    if number + 1 != recipe.total:
        raise ProofError(f"the corpus has {number + 1} conversations, and the rows recipe counts {recipe.total}")
    for row in places:
        check_row(rows, row, [held[int(order[place])] for place in _places_read(rows, row)])


def _places_read(rows: CommittedRows, row: int) -> range:
    """The places of the conversations of a row and, where more follow, that of the first one behind it."""
    places = rows.places_of(row)
    return range(places.start, min(places.stop + 1, rows.recipe.total))
