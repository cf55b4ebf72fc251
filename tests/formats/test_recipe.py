"""A recipe is read from whoever wrote it, and every field of it is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError
from tallystick.formats.recipe import Recipe, RecordRecipe

RecipeOf = Callable[..., Recipe]


def test_a_recipe_reads_back_from_its_own_bytes(recipe_of: RecipeOf) -> None:
    recipe = recipe_of()
    assert Recipe.from_bytes(recipe.to_bytes(), "recipe") == recipe
    assert recipe.examples_per_step == 4


@pytest.mark.parametrize(
    ("section", "field", "good", "bad"),
    [
        ("data", "kind", "jsonl", "csv"),
        ("data", "validation", 0, -1),
        ("data", "validation", 2**53 - 1, 0.5),
        ("tokenizer", "kind", "bpe", "words"),
        ("tokenizer", "vocabulary", 256, 255),
        ("tokenizer", "vocabulary", 1 << 20, (1 << 20) + 1),
        ("model", "architecture", "gpt2", "GPT2"),
        ("model", "architecture", "gpt_neox", "a/b"),
        ("model", "architecture", "x", ""),
        ("model", "architecture", "x" * 64, "x" * 65),
        ("model", "attention", "sdpa", "flash_attention_2"),
        ("optimizer", "kind", "sgd", "adam"),
        ("optimizer", "learning_rate", 0.0, -1e-9),
        ("optimizer", "learning_rate", 1e6, 1.1e6),
        ("optimizer", "betas", [0.0, 0.5], [0.9, 1.0]),
        ("optimizer", "betas", [0.9, 0.99], [0.9]),
        ("optimizer", "betas", [0.9, 0.99], [0.9, 0.99, 0.999]),
        ("optimizer", "eps", 1.0, 0.0),
        ("optimizer", "weight_decay", 0.0, -0.1),
        ("optimizer", "momentum", 0.0, 1.0),
        ("optimizer", "clip_norm", 1e9, 0.0),
        ("schedule", "kind", "linear", "step"),
        ("schedule", "warmup_steps", 12, 13),
        ("schedule", "final_share", 1.0, 1.5),
        ("training", "steps", 2**53 - 1, 0),
        ("training", "batch", 1, 0),
        ("training", "batch", 1 << 10, (1 << 20) + 1),
        ("training", "accumulation", 1, 0),
        ("training", "sequence", 1, 0),
        ("training", "dtype", "bf16", "fp16"),
        ("training", "device", "cuda", "tpu"),
        ("training", "seed", 2**53 - 1, -1),
        ("training", "seed", 0, True),
    ],
)
def test_every_field_has_its_bounds(recipe_of: RecipeOf, section: str, field: str, good: Any, bad: Any) -> None:
    assert recipe_of({section: {field: good}})
    with pytest.raises(MalformedError, match="recipe: "):
        recipe_of({section: {field: bad}})


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("anchor_stride", 1, 0),
        ("summaries", [], ["hash"]),
        ("summaries", ["bucket", "exact"], "exact"),
        ("exact_stride", 1, 0),
        ("bucket_stride", 1, 0),
        ("bucket_mode", "both", "fp8"),
        ("grid_eps", 1.0, 0.0),
        ("hint_margin", 0.25, 0.3),
        ("projection_width", 4096, 4097),
        ("projection_width", 1, 0),
        ("loss_decimals", 12, 13),
        ("loss_decimals", 0, -1),
        ("activation_checksum", True, 1),
    ],
)
def test_every_field_of_what_is_recorded_has_its_bounds(field: str, good: Any, bad: Any) -> None:
    assert RecordRecipe.from_json({field: good}, "record")
    with pytest.raises(MalformedError, match=rf"record: {field}"):
        RecordRecipe.from_json({field: bad}, "record")


@pytest.mark.parametrize("section", ["data", "tokenizer", "model", "optimizer", "schedule", "training", "record"])
def test_an_unknown_key_is_refused_by_name(recipe_of: RecipeOf, section: str) -> None:
    with pytest.raises(MalformedError, match=rf"{section}.surprise"):
        recipe_of({section: {"surprise": 1}})


def test_an_unknown_section_is_refused_by_name(recipe_of: RecipeOf) -> None:
    with pytest.raises(MalformedError, match="surprise"):
        recipe_of({"surprise": {}})


def model(**config: Any) -> dict[str, Any]:
    return {"model": {"config": config}}


@pytest.mark.parametrize(
    "config",
    [
        {"auto_map": {"AutoModel": "evil.Model"}},
        {"trust_remote_code": True},
        {"torch_dtype": "float64"},
        {"dtype": "float64"},
        {"quantization_config": {"bits": 4}},
        {"attn_implementation": "kernels-community/flash"},
        {"text_config": {"auto_map": "evil.Model"}},
        {"text_config": {"_attn_implementation": "kernels-community/flash"}},
        {"text_config": {"deeper": {"trust_remote_code": True}}},
        {"a": {"b": {"c": {"num_layers": 257}}}},
        {"a": {"sizes": [{"auto_map": "evil.Model"}]}},
        {"a": {"sizes": [[1 << 30]]}},
        {"hidden_size": 2**53},
        {"hidden_size": 1e20},
        {"_private": 1},
        {"Upper": 1},
        {"x" * 65: 1},
        {"hidden_size": 1 << 21},
        {"hidden_size": -(1 << 21)},
        {"num_hidden_layers": 257},
        {"n_layer": 100_000},
        {"text_config": {"num_hidden_layers": 257}},
        {"text_config": {"hidden_size": 1 << 30}},
        {"sizes": [1, 1 << 30]},
        {"sizes": [[1]]},
        {"hidden_size": None},
        {"ratio": float("inf")},
        {"ratio": float("nan")},
        {"huge": 10**30},
    ],
)
def test_hostile_settings_of_a_model_are_refused(recipe_of: RecipeOf, config: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        recipe_of(model(**config))


def test_a_layered_configuration_within_bounds_is_read(recipe_of: RecipeOf) -> None:
    config = {
        "hidden_size": 1 << 20,
        "num_hidden_layers": 256,
        "rope": {"theta": 1e4, "kinds": ["a", "b"]},
        "tied": True,
    }
    assert recipe_of(model(**config)).model.config == config


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        ({"batch": 1 << 8, "accumulation": 1 << 8}, {"batch": 1 << 8, "accumulation": 257}, "examples a step exceed"),
        ({"batch": 1 << 16}, {"batch": (1 << 16) + 1}, "examples a step exceed"),
        ({"batch": 1 << 8, "sequence": 1 << 16}, {"batch": 257, "sequence": 1 << 16}, "tokens in a micro-batch"),
    ],
)
def test_the_work_of_a_step_is_bounded(recipe_of: RecipeOf, good: Any, bad: Any, reason: str) -> None:
    small = {"training": {"batch": 1, "sequence": 1}}
    assert recipe_of(small, {"training": good})
    with pytest.raises(MalformedError, match=reason):
        recipe_of(small, {"training": bad})


def test_the_classifier_goes_with_the_digits_and_nothing_else(recipe_of: RecipeOf) -> None:
    cnn = {"model": {"architecture": "cnn", "config": {}}}
    assert recipe_of(cnn, {"data": {"kind": "digits"}})
    for changes in ([cnn], [{"data": {"kind": "digits"}}]):
        with pytest.raises(MalformedError, match="classifier"):
            recipe_of(*changes)


def test_both_bucket_modes_mean_two_buckets() -> None:
    assert RecordRecipe(bucket_mode="both").bucket_modes == ("fp16_rne", "grid")
    assert RecordRecipe(bucket_mode="grid").bucket_modes == ("grid",)


def test_the_summaries_due_follow_their_strides() -> None:
    recorded = RecordRecipe(summaries=("exact", "bucket"), exact_stride=2, bucket_stride=3)
    assert recorded.summaries_due(1) == set()
    assert recorded.summaries_due(4) == {"exact"}
    assert recorded.summaries_due(6) == {"exact", "fp16_rne"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["data", "model", "optimizer", "schedule", "training", "record", "x"]), st.text(max_size=6), JSON
)
@settings(deadline=None, max_examples=150)
def test_any_other_value_is_refused_and_never_breaks_the_reader(
    recipe_of: RecipeOf, section: str, field: str, value: Any
) -> None:
    told = "recipe: "
    try:
        recipe_of({section: {field: value}})
    except MalformedError as error:
        told = str(error)
    assert told.startswith("recipe: ")
