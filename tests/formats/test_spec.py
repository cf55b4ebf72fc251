"""A spec: of a recipe and its data, or of a loop that only its owner can repeat."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError
from tallystick.formats.data.step_program import batch_plan, classes, micro_batches, open_data, projection_seed
from tallystick.formats.recipe import RecordRecipe
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory

OWN = {"description": {"model": "Sequential"}, "record": {"anchor_stride": 3}}


@pytest.fixture(scope="module")
def spec(honest: Path) -> Spec:
    return RunDirectory(honest).spec()


def own(**changes: Any) -> Spec:
    return Spec.from_json({"spec": "training", "version": 1, **OWN, **changes}, "spec.json")


def test_a_spec_reads_back_from_its_own_bytes(spec: Spec) -> None:
    assert Spec.from_bytes(spec.to_bytes(), "spec.json") == spec
    assert spec.data_root is not None
    assert spec.recorded == spec.recipe.record  # type: ignore[union-attr]


def test_the_spec_of_a_loop_of_somebodys_own_has_neither_recipe_nor_data() -> None:
    assert own().recipe is None
    assert own().data_root is None
    assert own().recorded == RecordRecipe(anchor_stride=3)


@pytest.mark.parametrize("missing", ["description", "record"])
def test_a_spec_of_neither_kind_is_refused(missing: str) -> None:
    with pytest.raises(MalformedError, match="either recipe and data, or description and record"):
        Spec.from_json({name: value for name, value in OWN.items() if name != missing}, "spec.json")
    with pytest.raises(MalformedError, match="either recipe and data"):
        Spec.from_json({}, "spec.json")


@pytest.mark.parametrize("taken", [["recipe"], ["data"], ["recipe", "data"]])
def test_a_spec_of_both_kinds_is_refused(spec: Spec, taken: list[str]) -> None:
    table: Any = spec.to_json()
    with pytest.raises(MalformedError, match="either recipe and data"):
        own(**{name: table[name] for name in taken})


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"spec": "inference"},
        {"description": {"x" * 65: "y"}},
        {"description": {"x": "y" * 4097}},
        {"description": {"x": 1}},
        {"surprise": 1},
    ],
)
def test_other_values_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match=r"spec\.json"):
        own(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"kind": "csv"},
        {"kind": "digits"},
        {"tokenizer": "sha256:12"},
        {"source": None},
        {"tokens": {}},
        {"surprise": 1},
    ],
)
def test_data_that_is_no_commitment_is_refused(spec: Spec, change: dict[str, Any]) -> None:
    table = json.loads(spec.to_bytes())
    table["data"] |= change
    with pytest.raises(MalformedError, match=r"spec\.json: data"):
        Spec.from_bytes(encode(table), "spec.json")


def test_the_identity_follows_every_choice(spec: Spec) -> None:
    table = json.loads(spec.to_bytes())
    table["recipe"]["training"]["seed"] += 1
    other = Spec.from_bytes(encode(table), "spec.json")
    assert other.identity != spec.identity
    assert projection_seed(other) != projection_seed(spec)
    assert len(projection_seed(spec)) == 32


def test_the_batches_of_a_step_follow_from_data_root_and_seed(spec: Spec, honest: Path) -> None:
    dataset = open_data(spec, honest / "data")
    plan = batch_plan(spec, dataset)
    assert classes(spec) == 256
    indices = plan.indices(3)
    assert np.array_equal(indices, batch_plan(spec, dataset).indices(3))
    assert len(indices) == 4
    assert not set(indices) & set(plan.validation)


def test_micro_batches_split_a_step_in_its_order(recipe_of: Callable[..., Any], spec: Spec, honest: Path) -> None:
    dataset = open_data(spec, honest / "data")
    recipe = recipe_of({"training": {"batch": 2, "accumulation": 2}})
    parts = list(micro_batches(recipe, dataset, np.array([7, 3, 9, 1])))
    assert [part["inputs"].shape for part in parts] == [(2, 16), (2, 16)]
    assert np.array_equal(parts[1]["inputs"][0], dataset.batch(np.array([9]))["inputs"][0])
    assert np.array_equal(parts[0]["inputs"][0][1:], parts[0]["targets"][0][:-1])
