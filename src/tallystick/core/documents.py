"""Strict documents: the only way in which JSON becomes a typed object, and the words for why it does not."""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, ValidationError

from tallystick.core.canonical_json import (
    BYTES_MAX,
    DEPTH_MAX,
    INTEGER_MAX,
    Json,
    decode,
    encode,
    is_deep,
    parse,
    shown,
)
from tallystick.core.digests import NO_DIGEST, Digest, Hash, digest, is_digest
from tallystick.core.errors import MalformedError, meant_by
from tallystick.core.files import read_document

# Strict documents: the only way in which JSON of a prover becomes a typed object.


def decode_base64(text: str, what: str) -> bytes:
    """The bytes of canonical base64 (RFC 4648 §4); raises `MalformedError` naming `what`."""
    try:
        return _as_bytes(text)
    except ValueError as error:
        raise MalformedError(f"{what}: {error}") from None


def _as_digest(text: str) -> str:
    if not is_digest(text):
        raise ValueError(NO_DIGEST)
    return text


def _as_hash(value: object) -> Hash:
    if isinstance(value, bytes) and len(value) == 32:
        return Hash(value)
    if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise ValueError("not 64 lower-case hexadecimal digits")
    return Hash(bytes.fromhex(value))


def _as_bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except ValueError:
        data = None
    if data is None:
        raise ValueError("no base64")
    if base64.b64encode(data).decode() != value:
        raise ValueError("not canonical base64")
    return data


DigestText = Annotated[Digest, Field(strict=False), AfterValidator(_as_digest)]
HashText = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Proof = Annotated[tuple[HashText, ...], Field(max_length=64)]
"""The hashes of an audit path; no tree needs more."""
HashBytes = Annotated[Hash, PlainValidator(_as_hash), PlainSerializer(bytes.hex, return_type=str)]
"""A node of a tree: 32 bytes, written as 64 hexadecimal digits."""
Base64Bytes = Annotated[
    bytes, PlainValidator(_as_bytes), PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str)
]
Count = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
Positive = Annotated[int, Field(ge=1, le=INTEGER_MAX)]
Label = Annotated[str, Field(min_length=1, max_length=256)]
Reason = Annotated[str, Field(min_length=1, max_length=1024)]
"""A line that says why something is not there."""
Number = Annotated[float, Field(allow_inf_nan=False)] | Literal["nan", "inf", "-inf"]
"""A binary64 number; RFC 8785 has no NaN or infinity, so these are written as strings."""


class Document(BaseModel):
    """A frozen JSON object whose bytes, digest and meaning determine each other.

    Unknown keys, missing keys and explicit nulls are refused: an optional value that is not there is absent. A kind of
    document that others name by its digest states its domain.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    digest_noun: ClassVar[str]
    document_bytes_max: ClassVar[int] = BYTES_MAX

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

    @property
    def identity(self) -> Digest:
        """The digest by which others name this document."""
        return self.digest_as(self.digest_noun)

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> Self:
        """Read canonical bytes; raises `MalformedError` naming `what` and the field."""
        return read_canonical(cls.model_validate_json, data, what, cls.document_bytes_max, cls)

    @classmethod
    def from_json(cls, value: Json, what: str) -> Self:
        """Read parsed JSON; raises `MalformedError` naming `what` and the field."""
        try:
            data = encode(value)
        except MalformedError as error:
            raise MalformedError(f"{what}: {refused_field(value)}: {error}") from None
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise MalformedError(f"{what}: {explain(error, cls, what)}") from None
        except MalformedError as error:
            raise MalformedError(f"{what}: {error}") from None


Read = TypeVar("Read", bound=Document)


def read_canonical(
    validate: Callable[[bytes], Read], data: bytes, what: str, bytes_max: int = BYTES_MAX, kind: Any = None
) -> Read:
    """Read canonical bytes of a document of the type `kind`; raises `MalformedError` naming `what` and the field."""
    problem = "not in canonical form (a null or an equivalent spelling)"
    try:
        # If what was read encodes to `data`, then `data` is canonical: good bytes are parsed and encoded only once.
        if len(data) <= bytes_max and not is_deep(data) and (document := validate(data)).to_bytes() == data:
            return document
    except ValidationError as error:
        problem = explain(error, kind, what)
    except MalformedError as error:
        problem = str(error)
    decode(data, what, bytes_max=bytes_max)  # an error of the JSON itself is reported first
    raise MalformedError(f"{what}: {problem}")


# What is wrong with a document, in words of this project; loaded only where something is.

UNKNOWN: Final = "extra_forbidden"
MISSING: Final = ("missing", "union_tag_not_found")
OURS: Final = ("value_error", "assertion_error")
TEXT_MAX: Final = 200
OTHER: Final = "of the form in the specification"
WANTED: Final = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "{table}",
    "enum": "{expected}",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_type": "a whole number",
    "json_invalid": "valid JSON",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "{table}",
    "model_type": "{table}",
    "none_required": "left out, or null",
    "string_pattern_mismatch": "text like {pattern}",
    "string_too_long": "text of {max_length} characters or fewer",
    "string_too_short": "text of {min_length} characters or more",
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "too_long": "a list of {max_length} or fewer",
    "too_short": "a list of {min_length} or more",
    "tuple_type": "a list",
    "union_tag_invalid": "{expected_tags}",
}
"""What a field must be, by the kinds of pydantic's problems that documents of ours can have."""
FIELD_SHOWN: Final = 200


def explain(error: ValidationError, kind: Any = None, what: str = "") -> str:
    """The problem of a validation error as `field: what it must be`, for a document `what` of the type `kind`.

    Unknown fields come before missing ones: an unknown one is often the missing one, misspelt.
    """
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: (problem["type"] in MISSING, problem["type"] != UNKNOWN))
    place, names = _walk(kind, first["loc"], first["type"] in (UNKNOWN, "missing"))
    field = ".".join(place) or "document"
    field = field if len(field) <= FIELD_SHOWN else f"{field[:FIELD_SHOWN]}…"
    is_toml = what.endswith(".toml")
    if first["type"] == UNKNOWN:
        near = meant_by(str(first["loc"][-1]), names)
        return f"{field}: no such {'setting' if is_toml else 'field'}" + _or_rather(near)
    return f"{field}: {complaint(first, 'a table' if is_toml else 'an object')}"


def complaint(problem: Any, table: str = "an object") -> str:
    """What is wrong with one field: `must be graph or recipe, not 'grap'; did you mean graph?`."""
    if problem["type"] in MISSING:
        return "is missing"
    if problem["type"] in OURS:
        return str(problem["ctx"]["error"])
    context = {name: _written(value) for name, value in problem.get("ctx", {}).items()} | {"table": table}
    given = context.get("tag", problem["input"])
    choices = (context.get("expected") or context.get("expected_tags", "")).replace("'", "").replace(" or ", ", ")
    near = meant_by(given, choices.split(", ")) if isinstance(given, str) else ""
    wanted = WANTED.get(problem["type"], OTHER).format_map(context).replace("'", "")
    return f"must be {wanted[:TEXT_MAX]}, not {shown(given)}" + _or_rather(near)


def refused_field(value: Json, place: str = "") -> str:
    """The dotted path to the first entry that canonical JSON cannot hold, such as NaN or a date."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        try:
            encode(entry)
        except MalformedError:
            return refused_field(entry, f"{place}.{name}" if place else str(name))
    return place or "document"


def _written(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _or_rather(near: str) -> str:
    return f"; did you mean {near}?" if near else ""


def _walk(kind: Any, location: tuple[int | str, ...], names_a_field: bool) -> tuple[list[str], list[str]]:
    """The path to a field as it stands in the document, and the names of all fields there.

    pydantic's own path also names the members of unions that it tried. They stand in no document. Where `kind` is
    None, nothing is known of the document, and the path is pydantic's.
    """
    if kind is None:
        return [str(part) for part in location], []
    here, place = _members(kind), []
    for part in location[:-1] if names_a_field else location:
        inside = [inner for outer in here for inner in _inside(outer, part)]
        if inside:
            place.append(str(part))
            here = inside
    names = [name for model in here if _is_model(model) for name in model.model_fields]
    return [*place, *map(str, location[-1:] if names_a_field else ())], names


def _inside(kind: Any, part: int | str) -> list[Any]:
    """The types that an entry `part` of a value of type `kind` can have; none where it has no such entry."""
    if _is_model(kind):
        field = next((value for name, value in kind.model_fields.items() if part in (name, value.alias)), None)
        return _members(field.annotation) if field is not None else []
    entries = {list: int, tuple: int, dict: str}.get(get_origin(kind))
    if entries is None or not isinstance(part, entries):
        return []
    return [member for argument in get_args(kind)[entries is str :] for member in _members(argument)]


def _members(kind: Any) -> list[Any]:
    """The types of a union, or the type itself."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [inner for member in get_args(kind) for inner in _members(member)]
    return [kind]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


# What a person wrote for this program: TOML or JSON, read into a typed object.

Settings = TypeVar("Settings", bound=Document)


def read_settings(path: Path, kind: type[Settings]) -> Settings:
    """Read what a verifier wrote, TOML or JSON by the file's name; raises `MalformedError` naming the field."""
    data = read_document(path)
    if path.suffix == ".json":
        return kind.from_json(parse(data, path.name), path.name)
    return kind.from_json(parse_toml(data, path.name), path.name)


def parse_toml(data: bytes, what: str) -> dict[str, Any]:
    """A table of TOML; raises `MalformedError` for anything else, and for one nested deeper than JSON may be."""
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # too long a number is a ValueError and no TOMLDecodeError
        raise MalformedError(f"{what}: no valid TOML: {error}") from None
    level: list[Any] = [table]
    for _ in range(DEPTH_MAX):
        inner = chain.from_iterable(value.values() if isinstance(value, dict) else value for value in level)
        level = [value for value in inner if isinstance(value, dict | list)]
    if level:
        raise MalformedError(f"{what}: nested deeper than {DEPTH_MAX}")
    return table
