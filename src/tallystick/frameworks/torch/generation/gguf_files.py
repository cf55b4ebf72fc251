"""A model from a GGUF file, its quantised weights turned into float32 numbers.

The file is read by the `gguf` package through transformers, alone in a folder: nothing beside it is looked at.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from tallystick.errors import MalformedError, UnavailableError
from tallystick.extras import require
from tallystick.frameworks.torch.refusals import REFUSALS

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
    return GgufModel(_plain(model), tokenizer, dict(stored))


def _plain(model: Any) -> Any:
    """The same model without the marks by which transformers refuses to save what came from a quantised file."""
    settings = {key: value for key, value in model.config.to_dict().items() if key not in ORIGIN}
    with torch.device("meta"):
        plain = type(model)(type(model.config).from_dict(settings))
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain.eval()
