"""What keeps a training from being replayed is found before its first step, all of it together."""

from __future__ import annotations

from typing import Any

import pytest

import tallystick

torch = pytest.importorskip("torch")
nn = torch.nn


def model() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.1), nn.Linear(8, 1))


def adamw(model: Any, **settings: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), **settings)


def lines(*args: Any) -> list[str]:
    return [str(blocker) for blocker in tallystick.preflight(*args)]


def loader(**settings: Any) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(10, 3)), batch_size=4, **settings)


def test_all_blockers_are_listed_together_each_with_what_mends_it() -> None:
    found = model()
    assert lines(found, adamw(found, fused=True), loader()) == [
        "AdamW with fused=True cannot be replayed; set fused=False",
        "dropout draws random numbers (layer 1); set its probability to 0 (p=0)",
        "the last batch of an epoch has 2 rows and the others 4: its step cannot be replayed; set drop_last=True",
    ]


def test_a_training_that_can_be_replayed_has_none() -> None:
    found = model().eval()
    assert lines(found, adamw(found), loader(drop_last=True)) == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"amsgrad": True}, "AdamW with amsgrad=True cannot be replayed; set amsgrad=False"),
        ({"lr": torch.tensor(0.1), "foreach": False}, "AdamW with a tensor as lr cannot be replayed; give a float"),
    ],
)
def test_a_setting_of_the_optimizer_is_named(settings: dict[str, Any], line: str) -> None:
    found = nn.Linear(3, 1)
    assert lines(found, adamw(found, **settings)) == [line]


def test_an_optimizer_of_another_kind_or_of_another_model_or_two_of_them_are_named() -> None:
    found = nn.Linear(3, 1)
    (kind,) = lines(found, torch.optim.Adagrad(found.parameters()))
    (other,) = lines(found, adamw(nn.Linear(3, 1)))
    (two,) = lines(found, [adamw(found), adamw(found)])
    assert kind == "Adagrad cannot be captured: AdamW, Adam and SGD can; use AdamW, Adam or SGD of torch.optim"
    assert other.startswith("the optimizer holds a parameter that is none of the model's")
    assert two == "2 optimizers step in turn, and a graph holds one; put all parameters into one"


def test_a_compiled_model_and_weights_of_16_bits_are_named() -> None:
    compiled = torch.compile(nn.Linear(3, 1, dtype=torch.bfloat16), backend="eager")
    first, second = lines(compiled, adamw(compiled))
    assert first == "torch.compile rounds otherwise than single operators; record the loop uncompiled"
    assert second.endswith("keep the weights in float32, and compute under torch.autocast")


def test_dropout_inside_attention_is_named() -> None:
    layer = nn.MultiheadAttention(4, 2, dropout=0.1)
    assert "dropout draws random numbers (layer MultiheadAttention)" in lines(layer, adamw(layer))[0]
