"""Tokenizers made elsewhere: `tokenizer.json` of Hugging Face, run by the library `tokenizers`.

The file is data: no code in it is executed. Its regular expressions are run by the library, which gives up one match
after ten million steps; a hostile pattern may still take that long at every character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import MalformedError, UnavailableError
from tallystick.transcripts.dataset import VOCABULARY_MAX

try:
    from tokenizers import Tokenizer as Pipeline
except ModuleNotFoundError:
    from tallystick.extras import not_installed

    raise not_installed("tokenizers") from None


class TokenizerFile:
    """An `Encoder` of documents as the file defines it, without the special tokens that it would add around a text.

    A special token that is written out in a document becomes that token, as in `transformers`.
    """

    def __init__(self, content: bytes, end: str) -> None:
        """Read the file; `end` is the token that is put after each document.

        Raises `MalformedError` where the library does not read it, where it has no such token, where its tokens depend
        on chance, or where it has more of them than the format of tokens allows.
        """
        try:
            self._pipeline = Pipeline.from_buffer(content)
        except ValueError as error:
            raise MalformedError(f"tokenizer: the library tokenizers does not read it: {error}") from None
        self._pipeline.no_truncation()
        self._pipeline.no_padding()
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
        with _not_given_up():
            found = self._pipeline.encode_batch_fast(list(texts), add_special_tokens=False)
        return np.concatenate([np.array([*each.ids, self._end], np.uint32) for each in found])


@contextmanager
def _not_given_up() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the library's own, which has no other name to import
            raise
        raise UnavailableError(f"tokenizers gave up on a document: {error}") from None
