"""What a person wrote for this program: TOML or JSON, read into a typed object."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from tallystick.commitments.encoding import parse
from tallystick.documents.document import Document
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError

Settings = TypeVar("Settings", bound=Document)


def read_settings(path: Path, kind: type[Settings]) -> Settings:
    """Read what a verifier wrote, TOML or JSON by the file's name; raises `MalformedError` naming the field."""
    data = read_document(path)
    if path.suffix == ".json":
        return kind.from_json(parse(data, path.name), path.name)
    try:
        return kind.from_json(tomllib.loads(data.decode()), path.name)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"{path.name}: no valid TOML: {error}") from None
