"""A model directory: its data, its card, and models that come from GGUF files."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final, Literal

import torch

from tallystick.core.canonical_json import Json, encode, parse
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import read_document
from tallystick.core.lazy import require
from tallystick.core.safetensors import StateFile
from tallystick.core.tensor_digests import StateDigests, TensorDigest, digest_tensor
from tallystick.engines.tokenizers import REFUSALS
from tallystick.engines.torch.tensors import DTYPES as TORCH_DTYPES, dtype_name, from_tensor, to_tensor
from tallystick.formats.claims import Dtype, ModelCard
from tallystick.formats.store.directories import weight_files

# What a model directory holds as data, and the card that describes it.

DTYPES: Final[dict[Dtype, torch.dtype]] = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
VOLATILE: Final = frozenset({"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"})
"""Settings on the origin of a model or how it is run; they are not part of its identity."""
TOKENIZER_BYTES_MAX: Final = 256 << 20


def check_directory(path: Path) -> None:
    """Raise unless `path` holds configuration, tokenizer and weights as data; code in it is ignored."""
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise UnavailableError(f"{path}: no model directory: {name} is not there")
    if not any(path.glob("*.safetensors")):
        raise UnavailableError(f"{path}: no model directory: there is no .safetensors file")
    if "auto_map" in _object(path / "config.json"):
        raise MalformedError(f"{path}: config.json: auto_map asks for code, which is never run")


def _object(path: Path) -> dict[str, Json]:
    found = parse(read_document(path), str(path), long_integers=True)
    if not isinstance(found, dict):
        raise MalformedError(f"{path}: not a JSON object")
    return found


def shared_tensors(state: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """The names of a `state_dict(keep_vars=True)` in its order, those of one and the same tensor together."""
    shared: dict[int, list[str]] = {}
    for name, tensor in state.items():
        shared.setdefault(id(tensor), []).append(name)
    return list(shared.values())


def describe(config: Any, weights: Digest, path: Path, dtype: Dtype, version: Literal[1, 2] = 2) -> ModelCard:
    """The card of a model by its configuration, its weights' digest, and the tokenizer and template in `path`."""
    settings = {name: value for name, value in config.to_dict().items() if name not in VOLATILE}
    return ModelCard(
        model=version,
        architecture=config.model_type,
        config=digest("blob", encode(_plain(settings))),
        weights=weights,
        tokenizer=digest("blob", read_document(path / "tokenizer.json", TOKENIZER_BYTES_MAX)),
        template=_template(path),
        dtype=dtype,
        vocabulary=config.vocab_size,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
    )


def _template(path: Path) -> Digest | None:
    """The digest of the chat template: of `chat_template.jinja`, or else of the one in `tokenizer_config.json`.

    A text has the same digest in either place; several named templates are digested as canonical JSON.
    """
    own, settings = path / "chat_template.jinja", path / "tokenizer_config.json"
    if own.is_file():
        return digest("blob", read_document(own))
    held = _object(settings).get("chat_template") if settings.is_file() else None
    if held is None:
        return None
    return digest("blob", held.encode() if isinstance(held, str) else encode(held))


def _plain(value: Any) -> Any:
    """Settings as JSON values; other values become strings."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# The card of a model from the files of its directory: weights are digested where they lie, and none is loaded.


def read_card(path: Path, dtype: Dtype) -> ModelCard | None:
    """The card of the model in a directory in `dtype`: the one of `load_language_model(path, dtype)`.

    One tensor at a time is read, and converted if it is stored in another precision. None where only loading the model
    shows what the files mean, because transformers merges or renames tensors, or refuses them.

    Raises:
        UnavailableError: configuration, tokenizer or weights are not there.
        MalformedError: the configuration asks for code to be run.
    """
    check_directory(path)
    skeleton = _skeleton(path, dtype)
    weights = None if skeleton is None else _weights(skeleton, path)
    return None if skeleton is None or weights is None else describe(skeleton.config, weights, path, dtype)


def _skeleton(path: Path, dtype: Dtype) -> Any | None:
    """The model without weights; None where only transformers' loader can say what the files mean."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], trust_remote_code=False)
    except (OSError, *REFUSALS):
        return None  # loading it raises the error that names the file
    return None if _is_converted(model, path) else model


def _is_converted(model: Any, path: Path) -> bool:
    """Whether the loader does more than to convert each tensor to one precision."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    kept = (model._keep_in_fp32_modules, model._keep_in_fp32_modules_strict)
    merges = any(isinstance(each, WeightConverter) for each in get_model_conversion_mapping(model))
    is_quantized = getattr(model.config, "quantization_config", None) is not None
    return merges or is_quantized or any(kept) or (path / "adapter_config.json").exists()


@contextmanager
def stored_tensors(path: Path) -> Iterator[Mapping[str, StateFile]]:
    """The file of each tensor of a model directory by its name; raises `MalformedError` for a name in two files."""
    with ExitStack() as opened:
        files = [opened.enter_context(StateFile(each)) for each in weight_files(path)]
        held = {name: file for file in files for name in file.names}
        if len(held) < sum(len(file.names) for file in files):
            raise MalformedError(f"{path}: a tensor is in two of its files")
        yield held


def _weights(skeleton: Any, path: Path) -> Digest | None:
    """The state digest of what loading would give; None where a tensor is not in the files as the model has it."""
    state: Mapping[str, torch.Tensor] = skeleton.state_dict(keep_vars=True)
    entries: list[tuple[str, TensorDigest]] = []
    try:
        with stored_tensors(path) as held:
            for names in shared_tensors(state):
                # a tensor may stand under one of its names, or under several with equal bytes
                digests = {_tensor_digest(held[name], name, state[names[0]]) for name in names if name in held}
                if len(digests) != 1 or (own := digests.pop()) is None:
                    return None
                entries.append((names[0], own))
    except (MalformedError, UnavailableError):
        return None  # loading it raises the error that names the file
    return StateDigests(tuple(sorted(entries))).digest


def _tensor_digest(file: StateFile, name: str, model: torch.Tensor) -> TensorDigest | None:
    stored = file.tensor(name)
    wanted = dtype_name(model.dtype)
    if stored.shape != tuple(model.shape):
        return None
    if stored.dtype != wanted:
        if not (model.is_floating_point() and TORCH_DTYPES[stored.dtype].is_floating_point):
            return None
        return digest_tensor(to_tensor(from_tensor(stored).to(model.dtype)))
    found = digest_tensor(stored)
    file.release(name, 0, stored.nbytes)
    return found


# A model from a GGUF file, its quantised weights turned into float32 numbers.
#
# The file is read by the `gguf` package through transformers, alone in a folder: nothing beside it is looked at.

ORIGIN = ("quantization_config", "_name_or_path", "_model_name_or_path", "name_or_path")
"""Settings of the configuration that say how the weights were stored and what the file was called."""


@dataclass(frozen=True)
class GgufModel:
    """The model in float32, its tokenizer, and how many tensors were stored in which type."""

    model: Any
    tokenizer: Any
    stored: Mapping[str, int]


def load_gguf(path: Path) -> GgufModel:
    """The model in a GGUF file.

    Raises:
        UnavailableError: the `gguf` package is not installed, or weights are missing.
        MalformedError: the file is damaged, or of an architecture that transformers does not read.
    """
    require("gguf", "transformers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        with tempfile.TemporaryDirectory() as alone, redirect_stderr(StringIO()):  # a bar of tqdm, which has no switch
            Path(alone, path.name).symlink_to(path.resolve())
            return _load(Path(alone), path.name)
    except (OSError, *REFUSALS) as error:
        raise _unreadable(path, error) from None
    except Exception as error:
        if type(error) is not Exception:  # the tokenizers library refuses a vocabulary by a bare one
            raise
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> MalformedError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return MalformedError(f"{path}: the GGUF file cannot be read: {reason[:200]}")


def _load(folder: Path, name: str) -> GgufModel:
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    stored = Counter(tensor.tensor_type.name for tensor in GGUFReader(folder / name).tensors)
    config = AutoConfig.from_pretrained(folder, gguf_file=name, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, trust_remote_code=False)
    model, loaded = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        config=config,
        output_loading_info=True,
        trust_remote_code=False,
        dtype=torch.float32,
    )
    if loaded["missing_keys"]:
        raise UnavailableError(f"{name}: no whole model: {min(loaded['missing_keys'])} is not in it")
    return GgufModel(_plain_value(model), tokenizer, dict(stored))


def _plain_value(model: Any) -> Any:
    """The same model without the marks by which transformers refuses to save what came from a quantised file."""
    settings = {key: value for key, value in model.config.to_dict().items() if key not in ORIGIN}
    with torch.device("meta"):
        plain = type(model)(type(model.config).from_dict(settings))
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain.eval()
