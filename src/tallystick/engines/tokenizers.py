"""Tokenizers run by the library `tokenizers`, and conversations as rows by a chat template in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tallystick.core.canonical_json import loose_json
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import read_document
from tallystick.core.lazy import not_installed
from tallystick.formats.data.corpus import Corpus, hash_shards, list_shards
from tallystick.formats.data.rows import (
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    UNTRAINED,
    CommittedRows,
    Labelled,
    RowsRecipe,
    check_row,
    order_of,
)
from tallystick.formats.data.texts import read_conversations
from tallystick.formats.data.tokenizer import BYTE_TOKENS, PIECES, TOKENIZER_BYTES_MAX, Merge, Tokenizer, split_pieces
from tallystick.formats.dataset import VOCABULARY_MAX

# The errors with which libraries refuse a file from somebody else.

REFUSALS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(MemoryError, RuntimeError, TypeError, ValueError),
)
"""The errors that classes of transformers raise for a configuration, in addition to their own error."""


# The `tokenizers` library: it trains byte-pair encoders, and encodes text exactly as this project's own encoder.

try:
    from tokenizers import Regex, Tokenizer as Pipeline, decoders, models, pre_tokenizers, trainers
except ModuleNotFoundError:
    raise not_installed("tokenizers") from None

PAIR_TIMES_LEAST = 2


def train_bpe(text: str, vocabulary: int) -> Tokenizer:
    """Learn merges from `text` until there are `vocabulary` tokens, or until no pair occurs twice.

    Raises:
        UsageError: when the vocabulary is smaller than the 256 bytes, or larger than the format allows.
    """
    if not BYTE_TOKENS <= vocabulary <= VOCABULARY_MAX:
        raise UsageError(f"a vocabulary of {vocabulary} is not within {BYTE_TOKENS} to {VOCABULARY_MAX}")
    pipeline = Pipeline(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=PAIR_TIMES_LEAST,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pipeline.train_from_iterator(split_pieces(text), trainer)
    # merges as pairs of this project's token numbers: bytes first, then tokens in the order of merges
    numbers = {CHARACTERS[byte]: byte for byte in range(BYTE_TOKENS)}
    merges: list[Merge] = []
    for left, right in json.loads(pipeline.to_str())["model"]["merges"]:
        merges.append((numbers[left], numbers[right]))
        numbers.setdefault(left + right, len(numbers))
    return Tokenizer.bpe(merges)


def to_pipeline(tokenizer: Tokenizer) -> Any:
    """The tokenizer as a pipeline of the library, which encodes whole texts, decodes tokens and can be saved."""
    names = ["".join(CHARACTERS[byte] for byte in token) for token in tokenizer.tokens]
    merges = [(names[left], names[right]) for left, right in tokenizer.merges or ()]
    pipeline = Pipeline(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=merges))
    pieces = pre_tokenizers.Split(Regex(PIECES), "isolated")
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(False, use_regex=False)])
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def _byte_characters() -> list[str]:
    """The character with which the library writes each byte: itself if printable, else one from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printing else next(others)) for byte in range(BYTE_TOKENS)]


CHARACTERS = _byte_characters()


# Tokenizers made elsewhere: `tokenizer.json` of Hugging Face, run by the library `tokenizers`.
#
# The file is data: no code in it is executed. Its regular expressions are run by the library, which gives up one match
# after ten million steps; a hostile pattern may still take that long at every character.


class TokenizerFile:
    """An `Encoder` of documents as the file defines it, without the special tokens that it would add around a text.

    A special token that is written out in a document becomes that token, as in `transformers`.
    """

    def __init__(self, content: bytes, end: str) -> None:
        """Read the file; `end` is the token that is put after each document.

        Raises `MalformedError` where the library does not read it, where it has no such token, where its tokens depend
        on chance, or where it has more of them than the format of tokens allows.
        """
        self._pipeline = _pipeline_of(content, "tokenizer")
        if getattr(self._pipeline.model, "dropout", None):
            raise MalformedError("tokenizer: its merges are dropped at random (model.dropout)")
        number = self._pipeline.token_to_id(end)
        if number is None:
            raise MalformedError(f"tokenizer: has no token {end[:64]!r} to end documents with")
        self._end = number
        self.vocabulary = 1 + max(self._pipeline.get_vocab(with_added_tokens=True).values())
        if self.vocabulary > VOCABULARY_MAX:
            raise MalformedError(f"tokenizer: {self.vocabulary} tokens, more than the {VOCABULARY_MAX} allowed")

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """The tokens of documents one after the other, uint32[count]; raises `UnavailableError` where it gives up."""
        try:
            encoded = self._pipeline.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's own, which has no other name to import
                raise
            raise UnavailableError(f"tokenizers gave up on a document: {error}") from None
        return np.concatenate([np.array([*each.ids, self._end], np.uint32) for each in encoded])


def _pipeline_of(content: bytes, name: str) -> Any:
    """The tokenizer of a file, which neither cuts nor pads; raises `MalformedError` where the library refuses it."""
    try:
        pipeline = Pipeline.from_buffer(content)
    except ValueError as error:
        raise MalformedError(f"{name}: the library tokenizers does not read it: {error}") from None
    pipeline.no_truncation()
    pipeline.no_padding()
    return pipeline


# Conversations as rows: a chat template in Jinja's sandbox, and a `tokenizer.json` run by the library `tokenizers`.
#
# What is trained of a turn is what the template shows of it behind its generation prompt, up to the end of the turn.

try:
    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ModuleNotFoundError as missing:
    raise not_installed(missing.name or "jinja2") from None

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
        self._pipeline = _pipeline_of(self.tokenizer, TOKENIZER_FILE)
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
    """The chat template, and the settings of the tokenizer as far as there are any."""
    settings: Any = {}
    if (directory / CONFIG_FILE).is_file():
        try:  # none of the numbers is interpreted: there are some beyond every machine's
            settings = loose_json(read_document(directory / CONFIG_FILE).decode(), parse_int=str, parse_float=str)
        except ValueError as error:
            raise MalformedError(f"{CONFIG_FILE}: no valid JSON: {error}") from None
        settings = settings if isinstance(settings, dict) else {}
    if (directory / TEMPLATE_FILE).is_file():
        return read_document(directory / TEMPLATE_FILE), settings
    held = settings.get("chat_template")
    if not isinstance(held, str):
        raise UnavailableError(f"{directory}: no chat template: neither {TEMPLATE_FILE} nor one in {CONFIG_FILE}")
    return held.encode(), settings


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
    found = Corpus.of(each.shard for each in hash_shards(list_shards(corpus), None)).corpus
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
