"""The model that a recorded run ended with, as a directory in the form of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from transformers.utils.logging import disable_progress_bar

from tallystick.datasets import Tokenizer
from tallystick.errors import ProofError, UsageError
from tallystick.frameworks.tokenizers import to_pipeline
from tallystick.frameworks.torch.models import build_model
from tallystick.frameworks.torch.state import from_tensor
from tallystick.store import RunDirectory, read_document, write_atomically
from tallystick.tensors import read_state, state_digest
from tallystick.transcripts import anchor_file

WEIGHTS: Final = "weights."
TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def export_model(run: RunDirectory, out: Path) -> None:
    """Write configuration, weights, tokenizer and a plain chat template of a finished run's last state.

    Raises:
        UsageError: `out` is not empty, or the run did not train a language model.
        MalformedError: a file of the run is not what it should be.
        ProofError: the last anchor is not the claimed final state.
        UnavailableError: the run is not finished.
    """
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: not empty; choose another directory")
    recipe, end = run.spec().recipe, run.claim().final_state
    if recipe is None or recipe.data.kind == "digits":
        raise UsageError(f"{run.path}: the run did not train a language model from a recipe")
    tokenizer = Tokenizer.from_bytes(read_document(run.data_path / "tokenizer.json"))
    model = build_model(recipe, tokenizer.vocabulary)
    state = read_state(run.path / anchor_file(recipe.training.steps), canonical=True)
    if state_digest(state) != end:
        raise ProofError(f"{anchor_file(recipe.training.steps)} does not hold the final state of the claim")
    held = {name.removeprefix(WEIGHTS): from_tensor(each) for name, each in state.items() if name.startswith(WEIGHTS)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(held[name])
    disable_progress_bar()
    model.save_pretrained(out)  # type: ignore[operator]
    to_pipeline(tokenizer).save(str(out / "tokenizer.json"))
    write_atomically(out / "tokenizer_config.json", b'{"tokenizer_class":"PreTrainedTokenizerFast"}')
    write_atomically(out / "chat_template.jinja", TEMPLATE.encode())
