"""The card of a model from the files of its directory: weights are digested where they lie, and none is loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tallystick.commitments.digests import Digest
from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.dtypes import DTYPES as TORCH_DTYPES, dtype_name
from tallystick.frameworks.torch.generation.model_directory import DTYPES, check_directory, describe, shared_tensors
from tallystick.frameworks.torch.refusals import REFUSALS
from tallystick.frameworks.torch.tensors import from_tensor, to_tensor
from tallystick.store.origin import weight_files
from tallystick.tensors.digest import StateDigests, TensorDigest, digest_tensor
from tallystick.tensors.safetensors import StateFile
from tallystick.transcripts.model_card import Dtype, ModelCard


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


def _weights(skeleton: Any, path: Path) -> Digest | None:
    """The state digest of what loading would give; None where a tensor is not in the files as the model has it."""
    try:
        with ExitStack() as opened:
            files = [opened.enter_context(StateFile(each)) for each in weight_files(path)]
            held = {name: file for file in files for name in file.names}
            if len(held) < sum(len(file.names) for file in files):
                return None
            return _digest(skeleton, held)
    except (MalformedError, UnavailableError):
        return None  # loading it raises the error that names the file


def _digest(skeleton: Any, held: Mapping[str, StateFile]) -> Digest | None:
    state: Mapping[str, torch.Tensor] = skeleton.state_dict(keep_vars=True)
    entries: list[tuple[str, TensorDigest]] = []
    for names in shared_tensors(state):
        found = _shared_digest(names, state[names[0]], held)
        if found is None:
            return None
        entries.append((names[0], found))
    return StateDigests(tuple(sorted(entries))).digest


def _shared_digest(names: Collection[str], model: torch.Tensor, held: Mapping[str, StateFile]) -> TensorDigest | None:
    """The digest of a tensor that stands in the files under one of its names, or under several with equal bytes."""
    found = {_tensor_digest(held[name], name, model) for name in names if name in held}
    return found.pop() if len(found) == 1 else None


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
