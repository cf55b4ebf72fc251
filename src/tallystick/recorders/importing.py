"""Imports a model from a GGUF file, a directory of transformers or a run, as a canonical directory.

No code of the source runs: only configuration, tokenizer, template and weights are read.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tallystick.commitments.encoding import Json
from tallystick.documents.files import write_atomically
from tallystick.errors import UsageError
from tallystick.frameworks.torch.generation.language_models import load_language_model
from tallystick.frameworks.torch.generation.model_directory import DTYPES, shared_tensors
from tallystick.recorders.export import export_model
from tallystick.recorders.model_sources import ModelSource
from tallystick.recorders.model_writing import write_model
from tallystick.store.origin import weight_files
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import StateFile
from tallystick.transcripts.model_card import TRAINING_CLAIM, Dtype, ModelCard

COPIED: Final = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "generation_config.json", TRAINING_CLAIM),
)
"""The files of a directory of transformers that are kept byte for byte, where they are there."""


@dataclass(frozen=True)
class ImportedModel:
    """What was imported: the card, how many weights there are, and how they were stored.

    `stored` counts the tensors of the source by their type. `tied` gives the further names of a tensor, each with the
    name under which it is stored. `sha256` is that of a GGUF file, None for a folder.
    """

    card: ModelCard
    weights: int
    stored: Mapping[str, int]
    tied: Mapping[str, str] = field(default_factory=dict)
    sha256: str | None = None

    @property
    def dequantised(self) -> Mapping[str, int]:
        """How many tensors of the source were stored in which quantised type."""
        return {name: count for name, count in self.stored.items() if name not in (*DTYPES, "F64")}

    def to_json(self) -> dict[str, Json]:
        """All of it as JSON values, and the model root."""
        return {
            "card": self.card.to_json(),
            "dequantised": dict(self.dequantised),
            "root": str(self.card.identity),
            "stored": dict(self.stored),
            "tied": dict(self.tied),
            "weights": self.weights,
            **({} if self.sha256 is None else {"sha256": self.sha256}),
        }


def import_model(source: ModelSource, out: Path, dtype: Dtype | None = None) -> ImportedModel:
    """Write the model of a source into the folder `out`.

    Without `dtype`, weights keep the precision in which all of them are stored; otherwise it is F32.

    Raises:
        UnavailableError: a library or a file is not there, weights are missing, or the disk cannot be written.
        MalformedError: a file is damaged, of an unknown architecture, or asks for code to be run.
        ProofError: the last anchor of a run is not its claimed final state.
        UsageError: the run did not train a language model.
    """
    if source.kind == "run":
        model, card = export_model(RunDirectory(source.path), out, dtype or "F32")
        return _described(model, card, {"F32": len(shared_tensors(model.state_dict(keep_vars=True)))})
    if source.kind == "directory":
        return _from_directory(source.path, out, dtype)
    return _from_gguf(source.path, out, dtype or "F32")


def _from_gguf(path: Path, out: Path, dtype: Dtype) -> ImportedModel:
    from tallystick.frameworks.torch.generation.gguf_files import load_gguf

    found = load_gguf(path)
    card = write_model(found.model, lambda draft: _write_tokenizer(found.tokenizer, draft), dtype, out)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _described(found.model, card, found.stored, digest)


def _from_directory(path: Path, out: Path, dtype: Dtype | None) -> ImportedModel:
    stored = _stored_types(path)
    kept = [each for each in DTYPES if stored.keys() == {each}]
    chosen = dtype or (kept[0] if kept else "F32")
    found = load_language_model(path, chosen)
    card = write_model(found.model, lambda draft: _copy_tokenizer(path, found.tokenizer, draft), chosen, out)
    return _described(found.model, card, stored)


def _stored_types(path: Path) -> Mapping[str, int]:
    """The number of tensors of each type in the weights of a directory."""
    found: Counter[str] = Counter()
    for each in weight_files(path):
        with StateFile(each) as file:
            found.update(spec.dtype for spec in file.specs.values())
    return dict(found)


def _described(model: Any, card: ModelCard, stored: Mapping[str, int], sha256: str | None = None) -> ImportedModel:
    state = model.state_dict(keep_vars=True)
    groups = shared_tensors(state)
    tied = {other: names[0] for names in groups for other in names[1:]}
    return ImportedModel(card, sum(state[names[0]].numel() for names in groups), stored, tied, sha256)


def _write_tokenizer(tokenizer: Any, out: Path) -> None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError("the tokenizer of this model has no tokenizer.json")
    # written by us first: the library's own `save` raises a bare `Exception` if the disk is full
    write_atomically(out / "tokenizer.json", backend.to_str(pretty=True).encode())
    tokenizer.save_pretrained(out)


def _copy_tokenizer(path: Path, tokenizer: Any, out: Path) -> None:
    for name in COPIED:
        if (path / name).is_file():
            shutil.copyfile(path / name, out / name)
    if isinstance(tokenizer.chat_template, str) and not (out / "chat_template.jinja").exists():
        write_atomically(out / "chat_template.jinja", tokenizer.chat_template.encode())
