"""The data of a run under one root: the source, the tokenizer and the tokens, bound together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tallystick.commitments.digests import Digest, digest, parse_digest
from tallystick.commitments.encoding import Json, encode
from tallystick.datasets.records import RecordCommit
from tallystick.datasets.tokens import TokensCommit
from tallystick.documents.fields import constant, fields
from tallystick.errors import MalformedError

DatasetKind = Literal["text", "jsonl", "digits"]
RECORDS_OF: Final = {"text": "text", "jsonl": "jsonl", "digits": "arrays"}


@dataclass(frozen=True)
class DatasetCommitment:
    """What the data of a run is committed to by; the digits have neither tokenizer nor tokens."""

    kind: DatasetKind
    source: RecordCommit
    tokenizer: Digest | None = None
    tokens: TokensCommit | None = None

    @property
    def root(self) -> Digest:
        """The data root: the one name that keys the order of batches and stands in every record."""
        return digest("dataset", encode(self.to_json()))

    @property
    def count(self) -> int:
        """The number of tokens, or of examples where there are no tokens."""
        return self.source.count if self.tokens is None else self.tokens.count

    def to_json(self) -> Json:
        """The object as JSON values; what does not apply is absent."""
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
        case {"kind": "text" | "jsonl" | "digits" as kind}:
            return kind
        case {"kind": str(kind)}:
            raise MalformedError(f"data.kind: {kind[:64]!r} is none of {', '.join(RECORDS_OF)}")
        case _:
            raise MalformedError("data: not an object with the field 'kind'")
