"""A language model as a verifier runs it: one pass over a whole sequence, on whatever stack it has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from tallystick.formats.claims import ModelCard
from tallystick.formats.receipt import Grammar

Rows: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Prefill:
    """What one pass over tokens gave, from row `first` on, one row a token.

    `logits` is F32 [rows, vocabulary]; `hidden` has F32 [rows, width] for each requested layer. Row r holds what
    follows token r, so that answer token i of a prompt of P tokens was chosen from row P − 1 + i.
    """

    first: int
    logits: Rows
    hidden: Mapping[int, Rows]


class TokenMasks(Protocol):
    """Which tokens may come next in a text that a grammar describes."""

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """BOOL[V], true for tokens that may be next; raises `UnavailableError` if that takes more work than allowed."""

    def take(self, token: int) -> None:
        """Go on with one of the allowed tokens."""


class LanguageModel(Protocol):
    """The promised model, loaded from the verifier's own copy."""

    @property
    def card(self) -> ModelCard:
        """What the model is."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens after which an answer is over."""

    def prefill(self, tokens: Sequence[int], first: int, layers: Collection[int] = ()) -> Prefill:
        """One pass over `tokens` with an empty cache; raises `MalformedError` for a token outside the vocabulary."""

    def widened(self) -> LanguageModel | None:
        """The model with the same weights, computing in F32; None for a model of F32, or if there is no such pass."""

    def in_fewer_bits(self, name: str) -> LanguageModel | None:
        """The model with matrices in a format of fewer bits; None if there is no such pass."""

    def reruns(self, tokens: Sequence[int], given: Mapping[int, Rows]) -> Iterator[Mapping[int, Rows]]:
        """For each stack that is at hand, the layer behind each of `given` computed from these rows of it.

        Rows are those of all tokens; layer −1 stands for the tokens themselves. Empty where no layer can be run alone.
        """

    def encode_text(self, text: str) -> list[int]:
        """The tokens of a prompt."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: str | None = None) -> list[int]:
        """The tokens of messages, with tools as JSON text, in the model's chat template.

        Raises `UsageError` if there is no template, or if it refuses them.
        """

    def token_masks(self, grammar: Grammar, schema: str) -> TokenMasks:
        """The masks of JSON by this schema; `UnavailableError` if `grammar` names another library than is installed."""
