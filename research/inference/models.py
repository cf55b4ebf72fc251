"""The models that are served: the one of the demo, and a larger one trained for longer with cheaper ones beside it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.formats.receipt import Sampler
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.models import export_model
from tallystick.recording.training import Config, read_config, train

TUNING_STEPS: Final = 20
TUNING_RATE: Final = 1e-4
PROMPT_CHARACTERS: Final = 600
CONFIGS: Final = {"demo": "demo.toml", "served": "served.toml", "small": "served-small.toml"}


@dataclass(frozen=True)
class Cast:
    """A promised model, a smaller one with the same tokenizer, the promised one after more training, and a text."""

    promised: TorchLanguageModel
    smaller: TorchLanguageModel
    tuned: TorchLanguageModel
    text: str


def make_model(name: str, folder: Path) -> Path:
    """The directory of the model `name`, trained and exported below `folder` unless it is there already."""
    out, run = folder / name, folder / f"{name}-run"
    if out.is_dir():
        return out
    with resources.as_file(resources.files("tallystick") / "examples") as examples:
        recipe, source, *_ = read_config(examples / CONFIGS[name])
        train(Config(recipe, source), run)
    export_model(RunDirectory(run), out)
    return out


def make_cast(folder: Path, dtype: Any = "F32") -> Cast:
    """The larger model and those beside it, in `dtype`."""
    promised = load_language_model(make_model("served", folder), dtype)
    smaller = load_language_model(make_model("small", folder), dtype)
    text = source_text()
    return Cast(promised, smaller, replace(promised, model=tuned(promised, text)), text)


def source_text() -> str:
    """The text that the models were trained on."""
    return (resources.files("tallystick") / "examples" / "data" / "python-topics.txt").read_text()


def tuned(language_model: TorchLanguageModel, text: str) -> Any:
    """A copy of the model after a few steps on the text in lower case."""
    import torch

    model = copy.deepcopy(language_model.model).train()
    optimizer = torch.optim.AdamW(model.parameters(), TUNING_RATE)
    ids = language_model.encode_text(text[:40_000].lower())
    for step in range(TUNING_STEPS):
        window = torch.tensor([ids[step * 128 : step * 128 + 128]])
        optimizer.zero_grad()
        model(input_ids=window, labels=window).loss.backward()
        optimizer.step()
    return model.eval()


def prompts_of(language_model: TorchLanguageModel, text: str, count: int, tokens: int) -> tuple[tuple[int, ...], ...]:
    """Prompts of `tokens` tokens each, from places all over the text."""
    starts = [len(text) * number // count for number in range(count)]
    found = [language_model.encode_text(text[start : start + PROMPT_CHARACTERS])[:tokens] for start in starts]
    return tuple(tuple(prompt) for prompt in found if len(prompt) == tokens)


def samplers_of(count: int, temperature: float) -> tuple[Sampler, ...]:
    """What customers ask for: one temperature, and a seed of their own."""
    return tuple(Sampler(temperature=temperature, seed=1000 + number) for number in range(count))
