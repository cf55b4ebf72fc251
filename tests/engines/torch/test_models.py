"""Models are built from a configuration alone: nothing is fetched, and hostile ones are refused quickly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tallystick.core.errors import MalformedError, TallyError, UnavailableError
from tallystick.formats.recipe import Recipe

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
RecipeOf = Callable[..., Recipe]
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
BUILDS: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "qwen3": SMALL | {"head_dim": 16},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32},
    "gpt_neox": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
    "mixtral": SMALL | {"num_local_experts": 2},
}


def build(recipe_of: RecipeOf, architecture: str, parameters_max: int = 10**8, **config: Any) -> Any:
    from tallystick.engines.torch.training.trainer import build_model

    recipe = recipe_of({"model": {"architecture": architecture, "config": config}})
    return build_model(recipe, 256, parameters_max)


@pytest.mark.parametrize("architecture", BUILDS)
def test_a_small_model_of_every_tried_architecture_is_built_and_runs(recipe_of: RecipeOf, architecture: str) -> None:
    from tallystick.engines.torch.training.trainer import labels_of, logits_of

    model = build(recipe_of, architecture, **BUILDS[architecture])
    batch = {"inputs": torch.zeros(2, 8, dtype=torch.long), "targets": torch.ones(2, 8, dtype=torch.long)}
    assert logits_of(model, batch).shape == (16, 256)
    assert labels_of(batch).shape == (16,)


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("no-such-model", {}),
        ("bert-base-uncased", {}),
        ("llama", SMALL | {"hidden_size": 31}),
        ("llama", SMALL | {"num_attention_heads": 0}),
        ("llama", SMALL | {"hidden_act": "evil"}),
        ("llama", SMALL | {"rms_norm_eps": "small"}),
        ("llama", SMALL | {"vocab_size": 255}),
        ("llama", SMALL | {"vocab_size": "many"}),
        ("llama", SMALL | {"vocab_size": True}),
        ("llama", SMALL | {"hidden_size": -32}),
        ("llama", SMALL | {"hidden_size": 0}),
        ("llama", SMALL | {"hidden_size": "x"}),
        ("llama", SMALL | {"hidden_size": 8.5}),
        ("llama", SMALL | {"num_attention_heads": 3}),
        ("llama", SMALL | {"rope_parameters": {"rope_type": "nope"}}),
        ("llama", SMALL | {"rope_parameters": [1]}),
        ("llama", SMALL | {"layer_types": ["x"]}),
        ("llama", SMALL | {"pad_token_id": 5000}),
        ("llama", SMALL | {"tie_word_embeddings": "yes"}),
        ("llama", SMALL | {"id2label": {"a": 1}}),
        ("llama", SMALL | {"model_type": "gpt2"}),
        ("musicgen", {}),
        ("llama", SMALL | {"rope_parameters": {"rope_type": "yarn", "factor": 1e300, "rope_theta": 0.0}}),
        ("gpt2", {"n_embd": 31, "n_head": 2}),
        ("cwm", {}),
        ("reformer", {}),
        ("xlstm", {"hidden_size": 32, "num_blocks": 1 << 20, "num_heads": 1}),
    ],
)
def test_what_transformers_cannot_build_is_refused_in_one_line(
    recipe_of: RecipeOf, architecture: str, config: dict[str, Any]
) -> None:
    with pytest.raises(MalformedError, match="model") as refusal:
        build(recipe_of, architecture, **config)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("llama", SMALL | {"hidden_size": 1 << 20, "intermediate_size": 1 << 20}),
        ("llama", SMALL | {"head_dim": 1 << 20}),
        ("gpt2", {"n_embd": 1 << 20, "n_head": 1, "n_layer": 256}),
        ("mixtral", SMALL | {"num_local_experts": 1 << 20}),
        ("qwen2_moe", SMALL | {"num_experts": 1 << 20}),
    ],
)
def test_a_model_of_absurd_size_is_refused_without_allocating_it(
    recipe_of: RecipeOf, architecture: str, config: dict[str, Any]
) -> None:
    with pytest.raises(TallyError, match=r"parameters, more than|modules"):
        build(recipe_of, architecture, **config)


def test_the_limit_is_the_verifiers(recipe_of: RecipeOf) -> None:
    assert build(recipe_of, "llama", **SMALL)
    with pytest.raises(UnavailableError, match="more than the 1000 allowed"):
        build(recipe_of, "llama", 1000, **SMALL)


@pytest.mark.parametrize(
    "config",
    [{"channels": 0}, {"channels": 1025}, {"channels": 1.5}, {"dropout": 1.0}, {"dropout": -0.1}, {"depth": 3}],
)
def test_a_classifier_of_another_shape_is_refused(recipe_of: RecipeOf, config: dict[str, Any]) -> None:
    from tallystick.engines.torch.training.trainer import build_model

    cnn = {"data": {"kind": "digits"}, "model": {"architecture": "cnn", "config": config}}
    with pytest.raises(MalformedError, match=next(iter(config))):
        build_model(recipe_of(cnn), 10)


def test_a_configuration_that_builds_and_does_not_run_is_one_clear_error(
    recipe_of: RecipeOf, trained: Callable[..., Any], tmp_path: Any
) -> None:
    config = SMALL | {"return_dict": False}
    with pytest.raises(TallyError, match="step 1"):
        trained(tmp_path / "run", {"model": {"config": config}})


def test_building_leaves_no_hook_behind(recipe_of: RecipeOf) -> None:
    from torch.nn.modules import module

    build(recipe_of, "llama", **SMALL)
    assert not module._global_module_registration_hooks


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2"])
def test_one_seed_gives_one_model(recipe_of: RecipeOf, architecture: str) -> None:
    def drawn(seed: int) -> Any:
        torch.manual_seed(seed)
        model = build(recipe_of, architecture, **BUILDS[architecture])
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


@pytest.mark.parametrize("size", [256, 300])
def test_a_vocabulary_that_holds_every_token_is_built(recipe_of: RecipeOf, size: int) -> None:
    model = build(recipe_of, "llama", **SMALL | {"vocab_size": size})
    assert model.get_input_embeddings().weight.shape == (size, 32)


def test_the_number_of_parameters_is_limited_exactly(recipe_of: RecipeOf) -> None:
    count = sum(parameter.numel() for parameter in build(recipe_of, "llama", **SMALL).parameters())
    assert build(recipe_of, "llama", count, **SMALL)
    with pytest.raises(UnavailableError, match=f"has {count} parameters, more than the {count - 1} allowed"):
        build(recipe_of, "llama", count - 1, **SMALL)


@pytest.mark.parametrize("config", [{}, {"channels": 1}, {"dropout": 0}, {"channels": 2, "dropout": 0.99}])
def test_a_classifier_within_bounds_is_built_and_reads_images(recipe_of: RecipeOf, config: dict[str, Any]) -> None:
    from tallystick.engines.torch.training.trainer import build_model, labels_of, logits_of

    cnn = {"data": {"kind": "digits"}, "model": {"architecture": "cnn", "config": config}}
    table: Any = recipe_of(cnn).to_json()
    table["model"]["config"] = config
    model = build_model(Recipe.from_json(table, "recipe"), 10)
    batch = {"images": torch.zeros(3, 1, 8, 8), "labels": torch.tensor([0, 9, 4])}
    assert logits_of(model, batch).shape == (3, 10)
    assert labels_of(batch).tolist() == [0, 9, 4]
