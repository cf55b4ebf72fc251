"""Tokenizers: single bytes, or byte-pair encoding over bytes, each defined by a few lines of JSON.

Tokens 0 to 255 are the bytes; every merge of two tokens makes the next one. Text is first cut into pieces by
a fixed rule that knows ASCII only: it needs no Unicode tables, which change with every Unicode version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import Json, decode, encode
from tallystick.documents.fields import constant, fields, integer, items
from tallystick.errors import MalformedError
from tallystick.transcripts.dataset import VOCABULARY_MAX

TokenizerKind = Literal["bytes", "bpe"]
TOKENIZER_KINDS: Final = get_args(TokenizerKind)
BYTE_TOKENS: Final = 256
TOKENIZER_BYTES_MAX: Final = 64 << 20
PIECE_CHARACTERS: Final = 32
TOKEN_BYTES_MAX: Final = 4 * (PIECE_CHARACTERS + 1)
PIECE_RULE: Final = "ascii/v1"

Merge = tuple[int, int]


@dataclass(frozen=True)
class Tokenizer:
    """The whole definition of a tokenizer: which pairs of tokens are merged, the most urgent first.

    >>> Tokenizer("bpe", ((104, 105),)).vocabulary
    257
    """

    kind: TokenizerKind
    merges: tuple[Merge, ...] = ()

    @cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """The bytes each token stands for; a merge whose bytes are a token already names that token."""
        return tuple(self._numbers)

    @cached_property
    def ranks(self) -> dict[Merge, tuple[int, int]]:
        """How urgent each merge is, lowest first, and the token it makes."""
        tokens = self.tokens
        return {
            (left, right): (rank, self._numbers[tokens[left] + tokens[right]])
            for rank, (left, right) in enumerate(self.merges)
        }

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return len(self._numbers)

    @property
    def digest(self) -> Digest:
        """The one name of the tokenizer: the digest of its definition."""
        return digest("tokenizer", self.to_bytes())

    def to_json(self) -> Json:
        """The definition as JSON values."""
        if self.kind == "bytes":
            return {"kind": "bytes", "version": 1}
        return {
            "kind": "bpe",
            "merges": [list(pair) for pair in self.merges],
            "pieces": PIECE_RULE,
            "version": 1,
        }

    def to_bytes(self) -> bytes:
        """Canonical JSON (RFC 8785), the content of `tokenizer.json`."""
        return encode(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes) -> Tokenizer:
        """Read a definition, the only way in which one enters from outside; raises `MalformedError`."""
        return cls.from_json(decode(data, "tokenizer", bytes_max=TOKENIZER_BYTES_MAX))

    @classmethod
    def from_json(cls, value: Json) -> Tokenizer:
        """Read a definition out of parsed JSON; raises `MalformedError`."""
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind == "bytes":
            constant(fields(value, ("kind", "version"), "tokenizer")["version"], 1, "tokenizer.version")
            return cls("bytes")
        parts = fields(value, ("kind", "merges", "pieces", "version"), "tokenizer")
        constant(parts["kind"], "bpe", "tokenizer.kind")
        constant(parts["version"], 1, "tokenizer.version")
        constant(parts["pieces"], PIECE_RULE, "tokenizer.pieces")
        return cls("bpe", _read_merges(parts["merges"]))

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        tokens = [bytes([byte]) for byte in range(BYTE_TOKENS)]
        numbers = {token: number for number, token in enumerate(tokens)}
        for left, right in self.merges:
            token = tokens[left] + tokens[right]
            if numbers.setdefault(token, len(tokens)) == len(tokens):
                tokens.append(token)
        return numbers


def _read_merges(value: Json) -> tuple[Merge, ...]:
    """Pairs of tokens that exist when they are merged, each once, and none longer than a piece can be."""
    listed = items(value, "tokenizer.merges")
    if len(listed) > VOCABULARY_MAX - BYTE_TOKENS:
        raise MalformedError(f"tokenizer.merges: {len(listed)}, more than {VOCABULARY_MAX - BYTE_TOKENS}")
    tokens = [bytes([byte]) for byte in range(BYTE_TOKENS)]
    known, merges = set(tokens), dict[Merge, None]()
    for rank, entry in enumerate(listed):
        left, right = pair = _read_pair(entry, len(tokens), f"tokenizer.merges[{rank}]")
        token = tokens[left] + tokens[right]
        if pair in merges or len(token) > TOKEN_BYTES_MAX:
            reason = "given before" if pair in merges else f"makes a token of {len(token)} bytes"
            raise MalformedError(f"tokenizer.merges[{rank}]: {reason}")
        merges[pair] = None
        if token not in known:
            known.add(token)
            tokens.append(token)
    return tuple(merges)


def _read_pair(value: Json, tokens: int, what: str) -> Merge:
    pair = items(value, what)
    if len(pair) != 2:
        raise MalformedError(f"{what}: {len(pair)} tokens, not 2")
    left, right = (integer(part, what, most=tokens - 1) for part in pair)
    return left, right
