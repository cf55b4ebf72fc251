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


def test_all_blockers_are_listed_together_each_with_what_mends_it(unknown_draws: None) -> None:
    found = model()
    assert lines(found, adamw(found, amsgrad=True, fused=True), loader()) == [
        "AdamW with fused=True cannot be replayed; set fused=False",
        "dropout draws random numbers (layer 1); "
        "set its probability to 0 (p=0), or give the recorder a seed (`seed=1`)",
        "the last batch of an epoch has 2 rows and the others 4: with dropout its step cannot be replayed; "
        "set drop_last=True, or give the recorder `loss=` and `example=`",
    ]


def test_a_training_that_can_be_replayed_has_none() -> None:
    found = model().eval()
    assert lines(found, adamw(found), loader(drop_last=True)) == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"capturable": True}, "AdamW with capturable=True cannot be replayed; set capturable=False"),
        (
            {"lr": torch.tensor(0.1, dtype=torch.float16), "foreach": False},
            "AdamW with a tensor of torch.float16 as lr cannot be replayed; give a float",
        ),
    ],
)
def test_a_setting_of_the_optimizer_is_named(settings: dict[str, Any], line: str) -> None:
    found = nn.Linear(3, 1)
    assert lines(found, adamw(found, **settings)) == [line]


def test_an_optimizer_of_another_kind_or_of_another_model_is_named() -> None:
    found = nn.Linear(3, 1)
    (kind,) = lines(found, torch.optim.Rprop(found.parameters()))
    (other,) = lines(found, adamw(nn.Linear(3, 1)))
    assert kind.startswith("torch.optim.rprop.Rprop cannot be captured; these can: Adadelta, Adafactor, Adagrad")
    assert kind.endswith("SGD; use one of them")
    assert other.startswith("the optimizer holds a parameter that is none of the model's")
    assert lines(found, [torch.optim.SGD([each]) for each in found.parameters()]) == []


def test_momentum_from_before_the_recording_is_named_where_the_first_step_is_another_one() -> None:
    found = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(found.parameters(), momentum=0.9, dampening=0.5)
    assert lines(found, optimizer) == []
    found(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    (line,) = lines(found, optimizer)
    assert line == ("SGD with dampening goes on from earlier momentum; set dampening=0, or record from its first step")


def test_a_compiled_model_is_named_and_weights_of_16_bits_block_nothing() -> None:
    compiled = torch.compile(nn.Linear(3, 1, dtype=torch.bfloat16), backend="eager")
    assert lines(compiled, adamw(compiled)) == [
        "torch.compile rounds otherwise than single operators; record the loop uncompiled"
    ]


def test_a_batch_norm_that_averages_over_all_batches_is_named() -> None:
    found, fading = (nn.Sequential(nn.BatchNorm1d(3, momentum=momentum)) for momentum in (None, 0.0))
    (line,) = lines(found, adamw(found))
    assert line.startswith("batch norm with momentum=None (layer 0) averages over all batches")
    assert line.endswith("give it a number, such as momentum=0.1")
    assert lines(found.eval(), adamw(found)) == []
    assert lines(fading, adamw(fading)) == []


def test_dropout_whose_draws_are_known_is_no_blocker() -> None:
    layer = nn.MultiheadAttention(4, 2, dropout=0.1)
    assert lines(layer, adamw(layer)) == []


def test_dropout_inside_attention_is_named(unknown_draws: None) -> None:
    layer = nn.MultiheadAttention(4, 2, dropout=0.1)
    assert "dropout draws random numbers (layer MultiheadAttention)" in lines(layer, adamw(layer))[0]
