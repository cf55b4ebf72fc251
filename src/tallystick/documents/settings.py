"""What a person wrote for this program: TOML or JSON, read into a typed object."""

from __future__ import annotations

import tomllib
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from tallystick.commitments.encoding import parse
from tallystick.commitments.nesting import DEPTH_MAX
from tallystick.documents.document import Document
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError

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
    _check_depth(table, what)
    return table


def _check_depth(table: dict[str, Any], what: str) -> None:
    level: list[Any] = [table]
    for _ in range(DEPTH_MAX):
        inner = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [each for each in inner if isinstance(each, dict | list)]
    if level:
        raise MalformedError(f"{what}: nested deeper than {DEPTH_MAX}")
