"""The receipt of one answer of a language model: the model, its sampler, the request and the answer."""

from __future__ import annotations

import struct
from itertools import pairwise
from operator import not_
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tallystick.core.digests import Digest, digest
from tallystick.core.documents import Count, DigestText, Document, HashText, Label, Positive, decode_base64
from tallystick.programs.operators.tally.fixed_point import VOCABULARY_MAX

# The settings and the seed that determine how the next token is chosen from logits.
#
# The choice itself is implemented in `operators/tally/` and `sampling/`, and specified in `spec/sampler.md`.

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
SamplerTokens = Annotated[tuple[Token, ...], Field(max_length=LISTED_MAX), AfterValidator(_ascending)]

ADJUSTING: Final = (
    *("presence_penalty", "frequency_penalty", "logit_bias"),
    *("allowed_token_ids", "bad_token_ids", "min_tokens", "end_token_ids", "grammar"),
)
"""Settings that change logits before anything is chosen from them; a document leaves them out where they are off."""


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
    presence_penalty: Shift = Field(default=0.0, exclude_if=not_)
    frequency_penalty: Shift = Field(default=0.0, exclude_if=not_)
    logit_bias: Biases = Field(default=(), exclude_if=not_)
    allowed_token_ids: SamplerTokens = Field(default=(), exclude_if=not_)
    bad_token_ids: SamplerTokens = Field(default=(), exclude_if=not_)
    min_tokens: Count = Field(default=0, exclude_if=not_)
    end_token_ids: SamplerTokens = Field(default=(), exclude_if=not_)
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
        return max((listed[-1] for listed in (*lists, self.bad_token_ids, self.end_token_ids) if listed), default=-1)


# The receipt of one answer of a language model: request, answer, model, sampler and engine.
#
# Every field is a statement of the provider, signed by its key. A receipt is sent as a `SignedReceipt` in canonical
# JSON.
#
# Answer token i (from 0) is chosen from the logits at row i. Row 0 has the hidden states of the last prompt token, row
# i those of answer token i − 1. Layer 0 is the output of the first block; layer `card.layers` is the output of the
# final norm.

RECEIPT_BYTES_MAX = 16 << 20
TOKENS_MAX = 1 << 20
LAYERS_MAX = 1 << 10
FINGERPRINTS_MAX = 16
PARTS_MAX = 1024
"""The largest number of parts of committed hidden states that one challenge opens."""
SIGNED = b"tallystick/receipt/v1\n"
PROXY = "proxy"
"""The name of an engine that forwarded the answer of another one."""

Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,128}$")]
NONCE: Final = r"([0-9a-f]{2}){1,64}"
Nonce = Annotated[str, Field(pattern=f"^{NONCE}$")]
TokenCount = Annotated[int, Field(ge=0, le=TOKENS_MAX)]
TokenIds = Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 31)], ...], Field(max_length=TOKENS_MAX)]
Layers = Annotated[tuple[Annotated[int, Field(ge=0, le=LAYERS_MAX)], ...], Field(min_length=1, max_length=LAYERS_MAX)]


def tokens_digest(ids: tuple[int, ...] | list[int]) -> Digest:
    """The digest of token ids, encoded as little-endian U32."""
    return digest("tokens", struct.pack(f"<{len(ids)}I", *ids))


class Tokens(Document):
    """A sequence of token ids by count and digest; private receipts leave out the ids themselves.

    A proxy may not know the tokens of the answer that it forwards. With `over`, the digest is the blob digest of the
    text.
    """

    count: TokenCount
    digest: DigestText
    ids: TokenIds | None = None
    over: Literal["text"] | None = None

    @classmethod
    def of(cls, ids: tuple[int, ...] | list[int], private: bool = False) -> Self:
        """The tokens `ids`; if `private`, only count and digest."""
        return cls.model_construct(count=len(ids), digest=tokens_digest(ids), ids=None if private else tuple(ids))

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.ids is not None and self.over is not None:
            raise ValueError("ids are there, and the digest is of the text")
        if self.ids is not None and (len(self.ids), tokens_digest(self.ids)) != (self.count, self.digest):
            raise ValueError("ids, count and digest do not belong together")
        return self


class Request(Document):
    """A request: the provider's id, the prompt as tokens, the token limit, and the customer's nonce if there is one."""

    id: Identifier
    prompt: Tokens
    max_tokens: TokenCount
    nonce: Nonce | None = None


class Answer(Document):
    """An answer, and why it ended: an end token, a stop text, the token limit, or a customer who disconnected."""

    tokens: Tokens
    finish: Literal["end", "stop", "length", "cancelled"]


class EngineStatement(Document):
    """The engine that the provider states; `environment` is the digest of its stack, `graph` a graph root."""

    name: Label
    version: Label
    device: Label
    attention: Label
    kv_cache: Label = "native"
    environment: DigestText
    graph: DigestText | None = None


class BatchStatement(Document):
    """The largest batch in which the answer was computed, and a digest of the request in each row at each step."""

    largest: Positive = 1
    composition: DigestText | None = None


class Fingerprint(Document):
    """Lossy summaries of the hidden states from which the answer's tokens were chosen.

    `tokens` is the number of answer tokens summarised, in blocks of `block` (the last may be shorter). `data` is the
    wire form of the method in base64: by block, and inside a block by layer in the order of `layers`.
    """

    method: Literal["projection", "toploc"]
    layers: Layers
    block: Annotated[int, Field(ge=1, le=TOKENS_MAX)]
    tokens: TokenCount
    width: Annotated[int, Field(ge=1, le=4096)]
    bits: Literal[1, 4, 8, 32] = 8
    seed: HashText | None = None
    grid: Annotated[int, Field(ge=0, le=32)] | None = None
    data: Annotated[str, Field(max_length=RECEIPT_BYTES_MAX)]

    @property
    def raw(self) -> bytes:
        """The wire form; raises `MalformedError` unless it is canonical base64."""
        return decode_base64(self.data, "fingerprint.data")


class StatesCommitment(Document):
    """An RFC 6962 root over the hidden states themselves, made before they can be challenged (`spec/receipt.md`).

    Leaves: blocks of `block` rows in order, and inside a block the layers in the order of `layers`. `rows` is the
    number of rows committed to: those of the answer, or with `prompt` those of every token fed, prompt then answer.
    """

    root: DigestText
    layers: Layers
    block: Annotated[int, Field(ge=1, le=TOKENS_MAX)]
    rows: TokenCount
    prompt: bool = False
    dtype: Literal["F32", "BF16", "F16"] = "F32"


class Receipt(Document):
    """The receipt of one answer.

    `sequence` numbers the receipts of a key from 1; `previous` is the identity of the receipt before.
    """

    digest_noun: ClassVar[str] = "receipt"

    receipt: Literal[1] = 1
    model: DigestText
    request: Request
    answer: Answer
    sampler: Sampler
    engine: EngineStatement
    batch: BatchStatement = BatchStatement()
    fingerprints: Annotated[tuple[Fingerprint, ...], Field(max_length=FINGERPRINTS_MAX)] = ()
    states: StatesCommitment | None = None
    sequence: Positive
    previous: DigestText | None = None

    def signed_bytes(self) -> bytes:
        """The bytes that are signed: a domain tag and the canonical receipt."""
        return SIGNED + self.to_bytes()

    @property
    def fingerprint_bytes_per_token(self) -> float:
        """The size of the fingerprints' wire forms per answer token."""
        return sum(len(fingerprint.raw) for fingerprint in self.fingerprints) / max(1, self.answer.tokens.count)


class SignedReceipt(Document):
    """A receipt with the Ed25519 key and signature (RFC 8032) of its provider, in hexadecimal."""

    receipt: Receipt
    key: HashText
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
