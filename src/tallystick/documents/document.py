"""Strict documents: the only way in which JSON of a prover becomes a typed object."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tallystick.commitments.digests import Digest, digest, parse_digest
from tallystick.commitments.encoding import Json, decode, encode
from tallystick.errors import MalformedError

SAFE_INTEGER_MAX = 2**53 - 1


def _as_digest(text: str) -> str:
    try:
        return parse_digest(text, "value")
    except MalformedError as error:
        raise ValueError(str(error)) from None


DigestText = Annotated[Digest, Field(strict=False), AfterValidator(_as_digest)]
Count = Annotated[int, Field(ge=0, le=SAFE_INTEGER_MAX)]
Positive = Annotated[int, Field(ge=1, le=SAFE_INTEGER_MAX)]
Number = Annotated[float, Field(allow_inf_nan=False)] | Literal["nan", "inf", "-inf"]
"""A binary64 number; RFC 8785 has no NaN or infinity, so these are written as strings."""


class Document(BaseModel):
    """A frozen JSON object whose bytes, digest and meaning determine each other.

    Unknown keys, missing keys and explicit nulls are refused: an optional value that is not there is absent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_json(self) -> Json:
        """The object as JSON values, absent options left out."""
        value: Json = self.model_dump(mode="json", exclude_none=True)
        return value

    def to_bytes(self) -> bytes:
        """Canonical JSON (RFC 8785)."""
        return encode(self.to_json())

    def digest_as(self, noun: str) -> Digest:
        """The digest of the canonical bytes under the domain of `noun`."""
        return digest(noun, self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> Self:
        """Read canonical bytes; raises `MalformedError` naming `what` and the field."""
        document = cls.from_json(decode(data, what), what)
        if document.to_bytes() != data:
            raise MalformedError(f"{what}: not in canonical form (a null or an equivalent spelling)")
        return document

    @classmethod
    def from_json(cls, value: Json, what: str) -> Self:
        """Read parsed JSON; raises `MalformedError` naming `what` and the field."""
        try:
            return cls.model_validate_json(encode(value))
        except ValidationError as error:
            raise MalformedError(f"{what}: {explain(error)}") from None
        except MalformedError as error:
            raise MalformedError(f"{what}: {_refused_field(value)}: {error}") from None


def _refused_field(value: Json, place: str = "") -> str:
    """The dotted path to the first entry that canonical JSON cannot hold, such as NaN or a date."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        try:
            encode(entry)
        except MalformedError:
            return _refused_field(entry, f"{place}.{name}" if place else str(name))
    return place or "document"


def explain(error: ValidationError) -> str:
    """The first problem of a validation error as `field: reason`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "document"
    return f"{field}: {first['msg']}"
