"""The tokens that may come next in JSON of a schema, by llguidance: the library that vLLM has for it too.

Masks are part of a receipt's sampler, so they have to be the same wherever they are made: the options and the limits on
work are fixed here, and another version of the library is another sampler. The limits count steps, not seconds.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np

from tallystick.core.digests import digest
from tallystick.core.errors import UnavailableError
from tallystick.core.lazy import require
from tallystick.formats.receipt import Grammar

LIBRARY: Final = "llguidance"
OPTIONS: Final = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    "whitespace_pattern": " ?",
    "coerce_one_of": False,
    "lenient": False,
}
"""At most one space between two parts: a weak model would go on with spaces for ever."""
LIMITS: Final = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 10_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
LINE_MAX: Final = 200


def installed_version() -> str | None:
    """The version of the library; None if it is not installed."""
    try:
        return version(LIBRARY)
    except PackageNotFoundError:
        return None


def grammar_of(kind: Any, schema: str) -> Grammar:
    """What a receipt states about a schema; raises `UnavailableError` if the library is not installed."""
    require(LIBRARY)
    return Grammar(
        kind=kind, digest=digest("blob", schema.encode()), library=LIBRARY, version=installed_version() or ""
    )


def check_library(stated: Grammar) -> None:
    """Raise `UnavailableError` unless the stated library is installed in the stated version."""
    if stated.library != LIBRARY:
        raise UnavailableError(f"the grammar is by {stated.library[:LINE_MAX]!r}; here only {LIBRARY} makes masks")
    require(LIBRARY)
    if stated.version != installed_version():
        named = stated.version[:LINE_MAX]
        raise UnavailableError(f"the grammar is by {LIBRARY} {named!r}, and {installed_version()} is installed")


def check_grammar(schema: str) -> None:
    """Raise `UnavailableError` for a schema that the library does not understand, or that takes more work than allowed.

    A hostile schema may take memory without bound: call it in a process of its own (`recording.serving.schemas`).
    """
    require(LIBRARY)
    from llguidance import LLMatcher, LLParserLimits

    error = LLMatcher.validate_grammar(_compiled(schema), None, limits=LLParserLimits(**LIMITS))
    if error:
        raise UnavailableError(f"the schema: {error.splitlines()[0][:LINE_MAX]}")


class SchemaMasks:
    """The masks of one answer that is JSON by a schema; `tokenizer` is one of `grammar_tokenizer`."""

    def __init__(self, schema: str, tokenizer: Any) -> None:
        from llguidance import LLMatcher, LLParserLimits

        self._vocabulary = tokenizer.vocab_size
        self._matcher = LLMatcher(tokenizer, _compiled(schema), log_level=0, limits=LLParserLimits(**LIMITS))
        self._check()

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """BOOL[V], true for tokens that may be next; raises `UnavailableError` if that takes more work than allowed."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._vocabulary, bitorder="little").astype(np.bool_)

    def take(self, token: int) -> None:
        """Go on with one of the allowed tokens."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UnavailableError(f"the schema: {self._matcher.get_error().splitlines()[0][:LINE_MAX]}")


def grammar_tokenizer(tokenizer: Any, vocabulary: int, end_tokens: frozenset[int]) -> Any:
    """The library's view of a fast tokenizer of transformers; takes seconds for a large vocabulary."""
    require(LIBRARY)
    return _tokenizer(tokenizer.backend_tokenizer.to_str(), vocabulary, tuple(sorted(end_tokens)))


@lru_cache(maxsize=4)
def _tokenizer(text: str, vocabulary: int, end_tokens: tuple[int, ...]) -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer(text, n_vocab=vocabulary, eos_token=list(end_tokens))


def _compiled(schema: str) -> str:
    from llguidance import LLMatcher

    compiled: str = LLMatcher.grammar_from_json_schema(schema, overrides=OPTIONS)
    return compiled
