"""How the first state of a training stands to the weights of a directory."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.core.tensors import Tensor, in_dtype
from tallystick.verdicts.first_weights import compare_first_weights, find_places, plain_name


def tensor(*values: float) -> Tensor:
    return Tensor.of(np.asarray(values, np.float32))


ORIGIN = {"embed.weight": tensor(1, 2), "layers.0.q.weight": tensor(3), "layers.0.v.weight": tensor(4)}
STATE = {f"weights.{name}": each for name, each in ORIGIN.items()} | {"position.step": Tensor.of(np.asarray(0))}


def test_the_same_weights_agree() -> None:
    found = compare_first_weights(STATE, ORIGIN)
    assert found.agrees
    assert set(found.places) == {name for name in STATE if name.startswith("weights.")}
    assert (found.differing, found.missing, found.added) == ((), (), ())


def test_one_other_number_differs() -> None:
    found = compare_first_weights(STATE | {"weights.layers.0.v.weight": tensor(4.0000005)}, ORIGIN)
    assert not found.agrees
    assert found.differing == ("weights.layers.0.v.weight",)


def test_another_shape_differs() -> None:
    assert compare_first_weights(STATE | {"weights.embed.weight": tensor(1)}, ORIGIN).differing


@pytest.mark.parametrize("stored", ["BF16", "F16"])
def test_a_narrow_file_is_compared_after_exact_widening(stored: str) -> None:
    narrow = {name: in_dtype(each, stored) for name, each in ORIGIN.items()}
    assert compare_first_weights(STATE, narrow).agrees  # type: ignore[arg-type]
    assert not compare_first_weights(STATE | {"weights.embed.weight": tensor(1, 2.0001)}, narrow).agrees  # type: ignore[arg-type]


def test_a_wide_file_is_rounded_to_the_precision_of_the_state() -> None:
    wide = ORIGIN | {"embed.weight": tensor(1.0001, 2)}
    rounded = {name: in_dtype(each, "BF16") for name, each in STATE.items() if name.startswith("weights.")}
    assert compare_first_weights(rounded, wide).agrees  # type: ignore[arg-type]


def test_weights_stand_behind_one_prefix_and_inside_layers_of_peft() -> None:
    state = {
        "weights.base_model.model.embed.weight": tensor(1, 2),
        "weights.base_model.model.layers.0.q.base_layer.weight": tensor(3),
        "weights.base_model.model.layers.0.q.lora_A.default.weight": tensor(0.5),
        "weights.base_model.model.layers.0.q.lora_B.default.weight": tensor(0),
        "weights.base_model.model.layers.0.v.weight": tensor(4),
    }
    found = compare_first_weights(state, ORIGIN)
    assert found.agrees
    assert found.added == ("weights.base_model.model.layers.0.q.lora_A.default.weight",)
    tuned = state | {"weights.base_model.model.layers.0.q.base_layer.weight": tensor(3.5)}
    assert compare_first_weights(tuned, ORIGIN).differing == ("weights.base_model.model.layers.0.q.base_layer.weight",)


def test_a_trained_copy_that_peft_saves_is_compared_too() -> None:
    assert plain_name("a.head.modules_to_save.default.weight") == plain_name("a.head.original_module.weight")
    state = {"weights.head.modules_to_save.default.weight": tensor(1), "weights.head.original_module.weight": tensor(1)}
    assert compare_first_weights(state, {"head.weight": tensor(1)}).agrees
    other = state | {"weights.head.modules_to_save.default.weight": tensor(2)}
    assert not compare_first_weights(other, {"head.weight": tensor(1)}).agrees


def test_a_module_around_the_model_is_found() -> None:
    around = {f"weights.net.model.{name}" for name in ORIGIN} | {"weights.net.other.embed.weight"}
    assert find_places(around, ORIGIN)["embed.weight"] == ["weights.net.model.embed.weight"]


def test_tied_weights_that_a_file_holds_twice_are_not_missing() -> None:
    assert compare_first_weights(STATE, ORIGIN | {"head.weight": tensor(1, 2)}).agrees


def test_a_tensor_that_the_state_has_nowhere_is_missing() -> None:
    found = compare_first_weights(STATE, ORIGIN | {"head.weight": tensor(7)})
    assert (found.differing, found.missing, found.agrees) == ((), ("head.weight",), False)


def test_buffers_are_compared_as_weights_are() -> None:
    state = STATE | {"buffers.norm.running_mean": tensor(9)}
    assert compare_first_weights(state, ORIGIN | {"norm.running_mean": tensor(9)}).agrees
    assert compare_first_weights(state, ORIGIN | {"norm.running_mean": tensor(8)}).differing
