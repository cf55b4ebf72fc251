"""The card of a model directory without loading the model, kept as long as no file of the directory changes.

A verifier computes the card from the weights that it loaded, and never takes it from here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Final

from tallystick.core.canonical_json import Json, encode, parse
from tallystick.core.documents import Document
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import read_document, write_atomically
from tallystick.formats.claims import Dtype, ModelCard

RULES: Final = "a template in tokenizer_config.json is bound"
"""What a card binds: cards that were kept under other rules are computed anew."""
SETTLED_NS: Final = 2_000_000_000
"""How long a file must have been unchanged: within one tick of the clock, two changes have the same time."""
STATED: Final[Mapping[str, Dtype]] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


class KeptCard(Document):
    """A card, and the SHA-256 of the identity of the files from which it was computed."""

    files: str
    card: ModelCard


def stated_dtype(directory: Path) -> Dtype:
    """The precision that the configuration of a model states; F32 if it states none that is known."""
    try:
        config = parse(read_document(directory / "config.json"), "config.json", long_integers=True)
    except (UnavailableError, MalformedError):
        return "F32"  # loading the model says what is wrong with its directory
    stated = config.get("dtype", config.get("torch_dtype")) if isinstance(config, dict) else None
    return STATED.get(str(stated), "F32")


def card_of(directory: Path | str, dtype: Dtype = "F32", *, recheck: bool = False) -> ModelCard:
    """The model card of a directory in `dtype`, without loading the weights into a framework.

    The first call reads all files. The card is then kept in the user's cache folder (`$XDG_CACHE_HOME/tallystick`, by
    default `~/.cache/tallystick`) and answered from there while path, names, sizes, inodes and times of all files of
    the directory stay the same. With `recheck` the files are read in any case.

    Raises:
        UnavailableError: there is no model, or a file of it is missing.
        MalformedError: a file is malformed, or asks for code to be run.
    """
    path = Path(directory)
    started, files = time.time_ns(), _files(path)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = sha256(encode([str(path.resolve()), dtype])).hexdigest()
    identity, place = _identity(path, files, dtype), Path(cache, "tallystick", "model-cards", f"{name}.json")
    kept = None if recheck else _read(place)
    if kept is not None and kept.files == identity:
        return kept.card
    card = _compute(path, dtype)
    is_settled = all(max(each.st_mtime_ns, each.st_ctime_ns) < started - SETTLED_NS for each in files.values())
    if is_settled and _identity(path, _files(path), dtype) == identity:
        with suppress(UnavailableError):  # a cache that cannot be written costs time and nothing else
            write_atomically(place, KeptCard(files=identity, card=card).to_bytes(), durable=False)
    return card


def _compute(path: Path, dtype: Dtype) -> ModelCard:
    from tallystick.engines.torch.generation.model_files import read_card  # PyTorch takes seconds

    card = read_card(path, dtype)
    if card is None:
        from tallystick.engines.torch.generation.language_models import load_language_model

        card = load_language_model(path, dtype).card
    return card


def _files(path: Path) -> dict[str, os.stat_result]:
    """All files of the directory: which of them a library reads is for the library to choose."""
    try:
        return {each.name: each.stat() for each in sorted(path.iterdir()) if each.is_file()}
    except OSError as error:
        raise UnavailableError(f"{path}: could not be read: {error.strerror}") from None


def _identity(path: Path, files: dict[str, os.stat_result], dtype: Dtype) -> str:
    """SHA-256 over all that the card depends on, except for the bytes of the files."""
    entries: list[Json] = [
        [name, *map(str, (each.st_size, each.st_mtime_ns, each.st_ctime_ns, each.st_ino, each.st_dev))]
        for name, each in files.items()
    ]
    try:  # transformers completes configurations by its own defaults
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        version = ""
    return sha256(encode([str(path.resolve()), dtype, version, RULES, *entries])).hexdigest()


def _read(place: Path) -> KeptCard | None:
    try:
        return KeptCard.from_bytes(read_document(place), place.name)
    except (MalformedError, UnavailableError):
        return None
