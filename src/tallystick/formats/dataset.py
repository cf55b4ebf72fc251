"""The data of a run under one root: the source, the tokenizer and the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from tallystick.core.canonical_json import Json, constant, encode, fields, hash_field, integer, text
from tallystick.core.digests import Digest, Hash, digest, parse_digest
from tallystick.core.errors import MalformedError

CHUNK_BYTES: Final = 1 << 20
VOCABULARY_MAX: Final = 1 << 20
RecordKind = Literal["text", "jsonl", "arrays", "shards"]
RECORD_KINDS: Final = get_args(RecordKind)
DatasetKind = Literal["text", "jsonl", "digits", "corpus"]
RECORDS_OF: Final[dict[DatasetKind, RecordKind]] = {
    "text": "text",
    "jsonl": "jsonl",
    "digits": "arrays",
    "corpus": "shards",
}


@dataclass(frozen=True)
class RecordCommit:
    """The kind and the number of records, and the RFC 6962 root over them."""

    kind: str
    count: int
    root: Hash

    @property
    def digest(self) -> Digest:
        """The digest that identifies the ordered records."""
        return digest("dataset", encode(self.to_json()))

    def to_json(self) -> Json:
        """The fields as JSON values."""
        return {"count": self.count, "kind": self.kind, "root": self.root.hex()}

    @classmethod
    def from_json(cls, value: Json, what: str = "records") -> RecordCommit:
        """Read what `to_json` gives; raises `MalformedError` naming the field under `what`."""
        parts = fields(value, ("count", "kind", "root"), what)
        kind = text(parts["kind"], f"{what}.kind")
        if kind not in RECORD_KINDS:
            raise MalformedError(f"{what}.kind: {kind[:64]!r} is none of {', '.join(RECORD_KINDS)}")
        return cls(kind, integer(parts["count"], f"{what}.count", least=1), hash_field(parts["root"], f"{what}.root"))


@dataclass(frozen=True)
class TokensCommit:
    """The number of tokens, the size of the vocabulary, and the RFC 6962 root over ordered chunks of 1 MiB."""

    count: int
    vocabulary: int
    root: Hash

    @property
    def digest(self) -> Digest:
        """The digest that identifies the tokens."""
        return digest("tokens", encode(self.to_json()))

    def to_json(self) -> Json:
        """The fields as JSON values."""
        return {
            "chunk_bytes": CHUNK_BYTES,
            "count": self.count,
            "root": self.root.hex(),
            "vocabulary": self.vocabulary,
        }

    @classmethod
    def from_json(cls, value: Json, what: str = "tokens") -> TokensCommit:
        """Read what `to_json` gives; raises `MalformedError` naming the field under `what`."""
        parts = fields(value, ("chunk_bytes", "count", "root", "vocabulary"), what)
        integer(parts["chunk_bytes"], f"{what}.chunk_bytes", CHUNK_BYTES, CHUNK_BYTES)
        vocabulary = integer(parts["vocabulary"], f"{what}.vocabulary", 1, VOCABULARY_MAX)
        return cls(integer(parts["count"], f"{what}.count"), vocabulary, hash_field(parts["root"], f"{what}.root"))


@dataclass(frozen=True)
class DatasetCommitment:
    """The commitment to the data of a run; the digits have neither tokenizer nor tokens."""

    kind: DatasetKind
    source: RecordCommit
    tokenizer: Digest | None = None
    tokens: TokensCommit | None = None

    @property
    def root(self) -> Digest:
        """The data root: it is the key of the batch order, and is in every record."""
        return digest("dataset", encode(self.to_json()))

    @property
    def count(self) -> int:
        """The number of tokens, or of examples if there are no tokens."""
        return self.source.count if self.tokens is None else self.tokens.count

    def to_json(self) -> Json:
        """The fields as JSON values; fields that do not apply are left out."""
        value: dict[str, Json] = {"kind": self.kind, "source": self.source.to_json(), "version": 1}
        if self.tokenizer is not None and self.tokens is not None:
            value |= {"tokenizer": self.tokenizer, "tokens": self.tokens.to_json()}
        return value

    @classmethod
    def from_json(cls, value: Json) -> DatasetCommitment:
        """Read a commitment; raises `MalformedError` naming the field."""
        kind = _read_kind(value)
        names = ("kind", "source", "version") + (() if kind == "digits" else ("tokenizer", "tokens"))
        parts = fields(value, names, "data")
        constant(parts["version"], 1, "data.version")
        source = RecordCommit.from_json(parts["source"], "data.source")
        constant(source.kind, RECORDS_OF[kind], "data.source.kind")
        if kind == "digits":
            return cls(kind, source)
        tokenizer = parse_digest(parts["tokenizer"], "data.tokenizer")
        return cls(kind, source, tokenizer, TokensCommit.from_json(parts["tokens"], "data.tokens"))


def _read_kind(value: Json) -> DatasetKind:
    match value:
        case {"kind": "text" | "jsonl" | "digits" | "corpus" as kind}:
            return kind
        case {"kind": str(kind)}:
            raise MalformedError(f"data.kind: {kind[:64]!r} is none of {', '.join(RECORDS_OF)}")
        case _:
            raise MalformedError("data: not an object with the field 'kind'")
