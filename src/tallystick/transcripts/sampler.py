"""The settings and the seed that determine how the next token is chosen from logits.

The choice itself is implemented in `operators/tally/` and `sampling/`, and specified in `spec/sampler.md`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tallystick.documents.document import Count, DigestText, Document
from tallystick.operators.tally.keys import VOCABULARY_MAX
from tallystick.transcripts.model_card import Label

LISTED_MAX: Final = 1 << 16

Temperature = Annotated[float, Field(ge=0.0, le=1e3, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=1e-2, le=1e2, allow_inf_nan=False)]
Shift = Annotated[float, Field(ge=-2.0, le=2.0, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]
Token = Annotated[int, Field(ge=0, lt=VOCABULARY_MAX)]


def _ascending(tokens: tuple[int, ...]) -> tuple[int, ...]:
    if any(a >= b for a, b in pairwise(tokens)):
        raise ValueError("its tokens do not ascend")
    return tokens


def _biases(pairs: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    _ascending(tuple(token for token, _ in pairs))
    if not all(bias for _, bias in pairs):
        raise ValueError("a bias of 0 changes nothing: leave it out")
    return pairs


Biases = Annotated[tuple[tuple[Token, Bias], ...], Field(max_length=LISTED_MAX), AfterValidator(_biases)]
Tokens = Annotated[tuple[Token, ...], Field(max_length=LISTED_MAX), AfterValidator(_ascending)]

ADJUSTING: Final = (
    *("presence_penalty", "frequency_penalty", "logit_bias"),
    *("allowed_token_ids", "bad_token_ids", "min_tokens", "end_token_ids", "grammar"),
)
"""Settings that change logits before anything is chosen from them; a document leaves them out where they are off."""


def _is_off(value: object) -> bool:
    return not value


class Grammar(Document):
    """What a text has to be: `digest` names the JSON schema as text, `kind` the field of the request that gave it.

    `library` in `version` says which tokens may come next (`spec/sampler.md`).
    """

    kind: Literal["json_schema", "json_object", "tool_choice"]
    digest: DigestText
    library: Label
    version: Label


class Sampler(Document):
    """Adjustments and repetition penalty, then temperature, then top-k, top-p and min-p, then one draw.

    The draw is keyed by (seed, position); the position is the index of the token in the answer, from 0. Temperature 0
    takes the largest logit and draws nothing. `top_k` 0 keeps every token. `top_p` 1 and `min_p` 0 keep all remaining
    tokens, `top_p` 0 only the most probable one. The form is `unknown` if another server drew the tokens, as behind a
    proxy: the settings were passed to it, but it does not state how it uses the seed.

    Adjustments: `presence_penalty` and `frequency_penalty` lower the logits of tokens that the answer has already;
    `logit_bias` has pairs of a token and what is added to its logit; only `allowed_token_ids` can be chosen, if there
    are any, and none of `bad_token_ids`; before `min_tokens` tokens none of `end_token_ids`; under a `grammar` only
    tokens with which the text can still become what it describes. Lists ascend by token.
    """

    form: Literal["gumbel", "cdf", "unknown"] = "gumbel"
    temperature: Temperature = 1.0
    top_k: Count = 0
    top_p: Share = 1.0
    min_p: Share = 0.0
    repetition_penalty: Penalty = 1.0
    seed: Count = 0
    presence_penalty: Shift = Field(default=0.0, exclude_if=_is_off)
    frequency_penalty: Shift = Field(default=0.0, exclude_if=_is_off)
    logit_bias: Biases = Field(default=(), exclude_if=_is_off)
    allowed_token_ids: Tokens = Field(default=(), exclude_if=_is_off)
    bad_token_ids: Tokens = Field(default=(), exclude_if=_is_off)
    min_tokens: Count = Field(default=0, exclude_if=_is_off)
    end_token_ids: Tokens = Field(default=(), exclude_if=_is_off)
    grammar: Grammar | None = None

    @model_validator(mode="after")
    def _ends_with_a_minimum(self) -> Self:
        if self.end_token_ids and not self.min_tokens:
            raise ValueError("end_token_ids go with min_tokens")
        return self

    @property
    def is_greedy(self) -> bool:
        """Whether the token is the largest logit, without a draw."""
        return self.temperature == 0.0

    @property
    def is_canonical(self) -> bool:
        """Whether logits and settings determine the token."""
        return self.is_greedy or self.form != "unknown"

    @property
    def adjustments(self) -> tuple[str, ...]:
        """The names of the settings that change logits before a token is chosen."""
        return tuple(name for name in ADJUSTING if getattr(self, name))

    @property
    def largest_token(self) -> int:
        """The largest token that a setting names, −1 if none does."""
        lists = (tuple(token for token, _ in self.logit_bias), self.allowed_token_ids)
        return max((each[-1] for each in (*lists, self.bad_token_ids, self.end_token_ids) if each), default=-1)
