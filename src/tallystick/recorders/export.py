"""Exports the final model of a recorded run as a directory that transformers can load."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from tallystick.datasets.tokenizer import TOKENIZER_BYTES_MAX, Tokenizer
from tallystick.documents.files import read_document, write_atomically
from tallystick.documents.targets import require_empty_folder
from tallystick.errors import ProofError, UsageError
from tallystick.frameworks.tokenizers import to_pipeline
from tallystick.frameworks.torch.models import build_model
from tallystick.frameworks.torch.tensors import from_tensor
from tallystick.recorders.model_writing import write_model
from tallystick.store.anchors import Anchors
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.transcripts.claim import Claim
from tallystick.transcripts.model_card import TRAINING_CLAIM, Dtype, ModelCard
from tallystick.transcripts.record import anchor_file
from tallystick.workloads.names import weights_of
from tallystick.workloads.plan import classes

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
    own = content if is_made_elsewhere else to_pipeline(Tokenizer.from_bytes(content)).to_str(pretty=True).encode()
    write_atomically(out / "tokenizer.json", own)
    write_atomically(out / "tokenizer_config.json", b'{"tokenizer_class":"PreTrainedTokenizerFast"}')
    write_atomically(out / "chat_template.jinja", TEMPLATE.encode())
