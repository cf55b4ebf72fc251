"""Reads the TOML file with a recipe and the path of its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tallystick.commitments.digests import digest
from tallystick.datasets.tokenizer import TOKENIZER_BYTES_MAX
from tallystick.documents.files import read_document
from tallystick.documents.settings import parse_toml
from tallystick.errors import UsageError
from tallystick.store.origin import open_origin
from tallystick.transcripts.recipe import Recipe


class Config(NamedTuple):
    """A recipe, the file or corpus to train on, the file of a tokenizer and the weights that were made elsewhere."""

    recipe: Recipe
    source: Path | None = None
    tokenizer: Path | None = None
    initial: Path | None = None


def read_config(path: Path) -> Config:
    """The recipe in `path`, with what `data.path` and `tokenizer.path` name, relative to the config.

    The recipe names the tokenizer by its digest, which is read from the file where the config does not state it, and
    the weights of the directory `model.initial` by theirs.

    Raises:
        MalformedError: the file is no valid TOML, or a field is unknown, missing or out of range.
        UsageError: the kind of data needs a source, and none is named.
        UnavailableError: there is no such file.
    """
    table = parse_toml(read_document(path), str(path))
    source, tokenizer = (_pop_path(table, section, path) for section in ("data", "tokenizer"))
    if tokenizer is not None:
        table["tokenizer"].setdefault("digest", digest("blob", read_document(tokenizer, TOKENIZER_BYTES_MAX)))
    initial = _pop_path(table, "model", path, "initial")
    if initial is not None:
        table["model"]["initial"] = open_origin(initial).digest
    recipe = Recipe.from_json(table, str(path))
    if recipe.data.kind != "digits" and source is None:
        raise UsageError(f"{path}: data.path: name the file to train on")
    return Config(recipe, source, tokenizer, initial)


def _pop_path(table: dict[str, Any], section: str, config: Path, field: str = "path") -> Path | None:
    settings = table.get(section)
    named = settings.pop(field, None) if isinstance(settings, dict) else None
    return config.parent / named if isinstance(named, str) else None
