"""Reads the TOML file with a recipe and the path of its data."""

from __future__ import annotations

from pathlib import Path

from tallystick.documents.files import read_document
from tallystick.documents.settings import parse_toml
from tallystick.errors import UsageError
from tallystick.transcripts.recipe import Recipe


def read_config(path: Path) -> tuple[Recipe, Path | None]:
    """The recipe in `path`, and the file named by `data.path`, relative to the config.

    Raises:
        MalformedError: the file is no valid TOML, or a field is unknown, missing or out of range.
        UsageError: the kind of data needs a source, and none is named.
        UnavailableError: there is no such file.
    """
    table = parse_toml(read_document(path), str(path))
    data = table.get("data")
    source = data.pop("path", None) if isinstance(data, dict) else None
    recipe = Recipe.from_json(table, str(path))
    if recipe.data.kind != "digits" and not isinstance(source, str):
        raise UsageError(f"{path}: data.path: name the file to train on")
    return recipe, path.parent / source if isinstance(source, str) else None
