"""Strict documents: the only way in which JSON of a prover becomes a typed object."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tallystick.commitments.digests import NO_DIGEST, Digest, digest, is_digest
from tallystick.commitments.encoding import Json, decode, encode
from tallystick.errors import MalformedError

SAFE_INTEGER_MAX = 2**53 - 1


def _as_digest(text: str) -> str:
    if not is_digest(text):
        raise ValueError(NO_DIGEST)
    return text


DigestText = Annotated[Digest, Field(strict=False), AfterValidator(_as_digest)]
Count = Annotated[int, Field(ge=0, le=SAFE_INTEGER_MAX)]
Positive = Annotated[int, Field(ge=1, le=SAFE_INTEGER_MAX)]
Reason = Annotated[str, Field(min_length=1, max_length=1024)]
"""A line that says why something is not there."""
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
        decode(data, what)
        document = cls._validated(data, what)
        if document.to_bytes() != data:
            raise MalformedError(f"{what}: not in canonical form (a null or an equivalent spelling)")
        return document

    @classmethod
    def from_json(cls, value: Json, what: str) -> Self:
        """Read parsed JSON; raises `MalformedError` naming `what` and the field."""
        try:
            data = encode(value)
        except MalformedError as error:
            from tallystick.documents.explained import refused_field

            raise MalformedError(f"{what}: {refused_field(value)}: {error}") from None
        return cls._validated(data, what)

    @classmethod
    def _validated(cls, data: bytes, what: str) -> Self:
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            from tallystick.documents.explained import explain

            raise MalformedError(f"{what}: {explain(error, cls, what)}") from None
        except MalformedError as error:
            raise MalformedError(f"{what}: {error}") from None
