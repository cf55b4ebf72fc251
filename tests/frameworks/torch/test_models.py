"""Models are built from a stranger's recipe: nothing is fetched, and what cannot be built is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.models import build_model, labels_of, logits_of
from tallystick.transcripts import Recipe

SHAPE: dict[str, Any] = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "qwen3": SHAPE | {"head_dim": 4},
    "gpt2": {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16},
}
VOCABULARY = 256

pytestmark = pytest.mark.usefixtures("one_thread")


def recipe(architecture: str, config: dict[str, Any], **model: Any) -> Recipe:
    kind = "digits" if architecture == "cnn" else "text"
    table: Any = {
        "data": {"kind": kind},
        "model": {"architecture": architecture, "config": config, **model},
        "training": {"steps": 1, "batch": 1, "sequence": 4},
    }
    return Recipe.from_json(table, "recipe")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("architecture", sorted(TINY))
def test_a_language_model_is_built_without_a_network(architecture: str, attention: str) -> None:
    model = build_model(recipe(architecture, TINY[architecture], attention=attention), VOCABULARY)
    batch = {"inputs": torch.tensor([[1, 2, 3]]), "targets": torch.tensor([[2, 3, 4]])}
    assert logits_of(model, batch).shape == (3, VOCABULARY)
    assert labels_of(batch).tolist() == [2, 3, 4]


def test_the_classifier_reads_images() -> None:
    model = build_model(recipe("cnn", {"channels": 2, "dropout": 0.5}), 10)
    batch = {"images": torch.zeros(3, 1, 8, 8), "labels": torch.tensor([0, 9, 4])}
    assert logits_of(model, batch).shape == (3, 10)
    assert labels_of(batch).tolist() == [0, 9, 4]


@pytest.mark.parametrize("architecture", sorted(TINY))
def test_one_seed_gives_one_model(architecture: str) -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = build_model(recipe(architecture, TINY[architecture]), VOCABULARY)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


@pytest.mark.parametrize("architecture", ["resnet", "vit", "t5", "no-such-model", "timm", "auto"])
def test_what_is_no_causal_language_model_is_refused(architecture: str) -> None:
    with pytest.raises(MalformedError, match="is no causal language model"):
        build_model(recipe(architecture, {}), VOCABULARY)


@pytest.mark.parametrize(
    ("architecture", "change"),
    [
        ("llama", {"hidden_size": "x"}),
        ("llama", {"hidden_size": 8.5}),
        ("llama", {"hidden_size": -8}),
        ("llama", {"hidden_size": 0}),
        ("llama", {"num_attention_heads": 0}),
        ("llama", {"num_attention_heads": 3}),
        ("llama", {"hidden_act": "os.system"}),
        ("llama", {"rope_parameters": {"rope_type": "nope"}}),
        ("llama", {"rope_parameters": [1]}),
        ("llama", {"layer_types": ["x"]}),
        ("llama", {"pad_token_id": 5000}),
        ("llama", {"tie_word_embeddings": "yes"}),
        ("llama", {"initializer_range": "wide"}),
        ("llama", {"id2label": {"a": 1}}),
        ("llama", {"model_type": "gpt2"}),
        ("gpt2", {"n_embd": 7}),
        ("reformer", {}),
        ("musicgen", {}),
    ],
)
def test_a_configuration_that_makes_no_model_is_refused(architecture: str, change: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match=rf"^model.config: transformers cannot build a {architecture}: ."):
        build_model(recipe(architecture, TINY.get(architecture, {}) | change), VOCABULARY)


@pytest.mark.parametrize("size", [255, 0, -1, 256.5, "256", True])
def test_a_vocabulary_smaller_than_the_tokenizers_is_refused(size: Any) -> None:
    with pytest.raises(MalformedError, match=r"model.config.vocab_size"):
        build_model(recipe("llama", SHAPE | {"vocab_size": size}), VOCABULARY)


@pytest.mark.parametrize("size", [256, 300])
def test_a_vocabulary_that_holds_every_token_is_built(size: int) -> None:
    model = build_model(recipe("llama", SHAPE | {"vocab_size": size}), VOCABULARY)
    assert model.get_input_embeddings().weight.shape == (size, 8)  # type: ignore[operator]


@pytest.mark.parametrize(
    "config", [{"hidden_size": 1 << 20, "intermediate_size": 1 << 20}, {"vocab_size": 1 << 20, "hidden_size": 1 << 12}]
)
def test_a_giant_is_refused_before_its_memory_is_asked_for(config: dict[str, Any]) -> None:
    with pytest.raises(UnavailableError, match="parameters, more than the 2000000000 allowed"):
        build_model(recipe("llama", SHAPE | config), VOCABULARY)


def test_the_number_of_parameters_is_limited_exactly() -> None:
    small = recipe("cnn", {"channels": 1})
    count = sum(parameter.numel() for parameter in build_model(small, 10).parameters())
    assert build_model(small, 10, parameters_max=count)
    with pytest.raises(UnavailableError, match=f"has {count} parameters, more than the {count - 1} allowed"):
        build_model(small, 10, parameters_max=count - 1)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"channels": 0}, "channels"),
        ({"channels": 1025}, "channels"),
        ({"channels": "4"}, "channels"),
        ({"channels": 4.5}, "channels"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"dropout": "no"}, "dropout"),
        ({"depth": 3}, "depth"),
    ],
)
def test_a_classifier_out_of_bounds_is_refused_by_name(config: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedError, match=rf"model\.config\.{field}: "):
        build_model(recipe("cnn", config), 10)


@pytest.mark.parametrize("config", [{}, {"channels": 1}, {"dropout": 0}, {"dropout": 0.99}])
def test_a_classifier_within_bounds_is_built(config: dict[str, Any]) -> None:
    assert build_model(recipe("cnn", config), 10)
