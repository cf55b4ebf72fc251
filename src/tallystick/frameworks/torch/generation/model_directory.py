"""What a model directory holds as data, and the card that describes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import torch

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import Json, encode, parse
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, UnavailableError
from tallystick.transcripts.model_card import Dtype, ModelCard

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
