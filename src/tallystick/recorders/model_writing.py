"""Writes a model as a canonical directory: configuration, weights, tokenizer, chat template and model card."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from transformers.utils.logging import disable_progress_bar

from tallystick.documents.files import write_atomically
from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.generation.language_models import load_language_model
from tallystick.frameworks.torch.generation.model_directory import DTYPES
from tallystick.frameworks.torch.generation.model_files import read_card
from tallystick.tensors.safetensors import StateFile, write_state
from tallystick.transcripts.model_card import Dtype, ModelCard

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
