"""The receipt of one answer of a language model: request, answer, model, sampler and engine.

Every field is a statement of the provider, signed by its key. A receipt is sent as a `SignedReceipt` in canonical JSON.

Answer token i (from 0) is chosen from the logits at row i. Row 0 has the hidden states of the last prompt token, row i
those of answer token i − 1. Layer 0 is the output of the first block; layer `card.layers` is the output of the final
norm.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import encode
from tallystick.documents.document import DigestText, Document, Positive
from tallystick.errors import MalformedError
from tallystick.transcripts.model_card import Label
from tallystick.transcripts.sampler import Sampler

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
Nonce = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,64}$")]
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
    seed: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
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

    @property
    def identity(self) -> Digest:
        """The digest that identifies this receipt."""
        return self.digest_as("receipt")

    def signed_bytes(self) -> bytes:
        """The bytes that are signed: a domain tag and the canonical receipt."""
        return SIGNED + self.to_bytes()

    @property
    def bytes_per_token(self) -> float:
        """The size of the canonical receipt per answer token."""
        return len(encode(self.to_json())) / max(1, self.answer.tokens.count)

    @property
    def fingerprint_bytes_per_token(self) -> float:
        """The size of the fingerprints' wire forms per answer token."""
        return sum(len(each.raw) for each in self.fingerprints) / max(1, self.answer.tokens.count)


class SignedReceipt(Document):
    """A receipt with the Ed25519 key and signature (RFC 8032) of its provider, in hexadecimal."""

    receipt: Receipt
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


def decode_base64(text: str, what: str) -> bytes:
    """The bytes of canonical base64 (RFC 4648 §4); raises `MalformedError` naming `what`."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedError(f"{what}: no base64") from None
    if base64.b64encode(data).decode() != text:
        raise MalformedError(f"{what}: not canonical base64")
    return data
