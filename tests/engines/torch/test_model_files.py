"""The card from files is the card of the loaded model, for every way in which weights can be stored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import Tensor

torch = pytest.importorskip("torch")

from tallystick.core.errors import MalformedError, UnavailableError  # noqa: E402
from tallystick.engines.model_cards import card_of  # noqa: E402
from tallystick.engines.torch.generation.language_models import load_language_model  # noqa: E402
from tallystick.engines.torch.generation.model_files import read_card  # noqa: E402
from tallystick.formats.store.directories import INDEX  # noqa: E402

from .architectures import build  # noqa: E402

Change = Callable[[Path], object]
WEIGHTS = "model.safetensors"


@pytest.fixture
def copied(model_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_directory, tmp_path / "model"))


def as_it_is(_folder: Path) -> None: ...


def in_half_the_bits(folder: Path) -> None:
    model = load_language_model(folder, "BF16").model
    model.save_pretrained(folder)


def in_two_files(folder: Path) -> None:
    state = read_state(folder / WEIGHTS)
    parts = {"a.safetensors": sorted(state)[:3], "b.safetensors": sorted(state)[3:]}
    for file, names in parts.items():
        write_state(folder / file, {name: state[name] for name in names})
    (folder / WEIGHTS).unlink()
    index = {"metadata": {}, "weight_map": {name: file for file, names in parts.items() for name in names}}
    (folder / INDEX).write_text(json.dumps(index))


def with_a_file_nobody_reads(folder: Path) -> None:
    write_state(folder / "other.safetensors", {"model.norm.weight": Tensor.of(np.zeros(32, "<f4"))})


def with_the_head_stored_too(folder: Path) -> None:
    state = read_state(folder / WEIGHTS)
    write_state(folder / WEIGHTS, {**state, "lm_head.weight": state["model.embed_tokens.weight"]})


def with_a_weight_nobody_reads(folder: Path) -> None:
    write_state(folder / WEIGHTS, {**read_state(folder / WEIGHTS), "aside": Tensor.of(np.zeros(3, "<f4"))})


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize(
    "change",
    [
        as_it_is,
        in_half_the_bits,
        in_two_files,
        with_a_file_nobody_reads,
        with_the_head_stored_too,
        with_a_weight_nobody_reads,
    ],
)
def test_the_card_is_that_of_the_loaded_model(copied: Path, change: Change, dtype: Any) -> None:
    change(copied)
    assert read_card(copied, dtype) == load_language_model(copied, dtype).card


def with_another_head(folder: Path) -> None:
    state = read_state(folder / WEIGHTS)
    head = state["model.embed_tokens.weight"]
    write_state(folder / WEIGHTS, {**state, "lm_head.weight": Tensor.of(head.values()[::-1])})


def quantised(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gguf"}}))


@pytest.mark.parametrize("change", [with_another_head, quantised])
def test_what_only_the_loader_understands_is_loaded(copied: Path, change: Change) -> None:
    change(copied)
    assert read_card(copied, "F32") is None
    load_language_model(copied)


@pytest.mark.parametrize("name", ["gpt2-sdpa", "qwen3-sdpa"])
def test_other_architectures_have_their_cards(name: str, copied: Path) -> None:
    model, _ = build(name)
    model.save_pretrained(copied)
    for dtype in ("F32", "BF16"):
        assert read_card(copied, dtype) == load_language_model(copied, dtype).card


def test_merged_experts_are_loaded(copied: Path) -> None:
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_local_experts": 2, "num_key_value_heads": 1, "vocab_size": 64, "num_experts_per_tok": 1}
    transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **experts)).save_pretrained(copied)
    assert read_card(copied, "F32") is None
    load_language_model(copied)


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda folder: (folder / WEIGHTS).write_bytes(b"\0" * 40), MalformedError, "cannot load it"),
        (lambda folder: (folder / WEIGHTS).rename(folder / "weights.safetensors"), MalformedError, "cannot load it"),
        (lambda folder: (folder / "tokenizer.json").unlink(), UnavailableError, "tokenizer.json is not there"),
    ],
)
def test_a_damaged_directory_is_refused_as_by_loading(copied: Path, change: Change, kind: Any, said: str) -> None:
    change(copied)
    with pytest.raises(kind, match=said):
        card_of(copied)
