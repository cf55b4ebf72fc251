"""A full state, out of live objects and back into them: every byte that a later step depends on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tallystick.core.errors import MalformedError
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.tensors import (
    check_names,
    from_tensor,
    generator_state,
    live_tensors,
    restore_generators,
    restore_tensors,
    to_tensor,
)
from tallystick.engines.torch.training.trainer import Trainer

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
Build = Callable[..., Any]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5)], ids=str)
def test_a_tensor_keeps_its_bytes_shape_and_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = (torch.rand(shape) * 100).to(dtype)
    found = from_tensor(to_tensor(value))
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert torch.equal(found, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_no_number_keeps_its_bytes_too(dtype: torch.dtype) -> None:
    value = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40]).to(dtype)
    assert bytes(to_tensor(from_tensor(to_tensor(value))).data) == bytes(to_tensor(value).data)


def test_a_tensor_that_does_not_lie_in_order_is_written_in_order() -> None:
    across = torch.arange(6).reshape(2, 3).T
    assert to_tensor(across).array().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_tensor_read_back_is_a_copy() -> None:
    tensor = Tensor.of(np.zeros(3, np.float32))
    from_tensor(tensor).add_(1)
    assert tensor.array().tolist() == [0, 0, 0]


def test_a_full_state_goes_through_another_trainer_unchanged(trainer_of: Build, batches_of: Build) -> None:
    trainer: Trainer = trainer_of()
    for index in (1, 2):
        trainer.step(batches_of(trainer.recipe, index))
    state = {name: tensor.copy() for name, tensor in trainer.state().items()}
    other: Trainer = trainer_of({"training": {"seed": 99}})
    assert state_digest(other.state()) != state_digest(state)
    other.restore(state)
    assert other.index == 2
    assert state_digest(other.state()) == state_digest(state)


def test_a_state_names_weights_optimizer_generator_and_position(trainer_of: Build) -> None:
    names = set(trainer_of().state())
    kinds = {name.partition(".")[0] for name in names}
    assert (
        {"weights", "optimizer", "rng", "position"} <= kinds <= {"weights", "buffers", "optimizer", "rng", "position"}
    )
    slots = {name.rpartition(".")[2] for name in names if name.startswith("optimizer.")}
    assert slots == {"step", "exp_avg", "exp_avg_sq"}
    assert {"rng.torch_cpu", "position.step"} <= names


def test_the_untrained_state_has_the_names_shapes_and_dtypes_of_every_later_one(
    trainer_of: Build, batches_of: Build
) -> None:
    for kind in ("adamw", "sgd"):
        trainer: Trainer = trainer_of({"optimizer": {"kind": kind, "momentum": 0.9}})
        before = {name: (tensor.dtype, tensor.shape) for name, tensor in trainer.state().items()}
        trainer.step(batches_of(trainer.recipe, 1))
        assert {name: (tensor.dtype, tensor.shape) for name, tensor in trainer.state().items()} == before


def test_tied_weights_appear_once(trainer_of: Build) -> None:
    tied, own = (set(trainer_of({"model": {"config": config(tie)}}).state()) for tie in (True, False))
    assert "weights.lm_head.weight" in own - tied
    assert "weights.model.embed_tokens.weight" in tied


def config(tie: bool) -> dict[str, Any]:
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    return shape | {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": tie}


def test_batch_norm_buffers_belong_to_the_state() -> None:
    model = nn.BatchNorm1d(2)
    live = live_tensors(model, torch.optim.SGD(model.parameters()))
    assert {"buffers.running_mean", "buffers.running_var", "buffers.num_batches_tracked"} <= live.keys()


def test_a_number_in_an_optimizer_is_a_float64_of_the_state() -> None:
    weight = nn.Parameter(torch.zeros(1))
    model = nn.ParameterDict({"w": weight})
    optimizer = torch.optim.SGD([weight])
    optimizer.state[weight] = {"eta": 0.1, "steps": 3, "name": "ignored"}
    live = live_tensors(model, optimizer)
    assert live["optimizer.w.eta"].dtype == torch.float64
    assert float(live["optimizer.w.eta"]) == 0.1
    assert float(live["optimizer.w.steps"]) == 3.0
    assert "optimizer.w.name" not in live


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("weights.model.norm.weight", np.zeros(31, np.float32)),
        ("weights.model.norm.weight", np.zeros((32, 1), np.float32)),
        ("weights.model.norm.weight", np.zeros(32, np.float64)),
        ("weights.model.norm.weight", np.zeros(32, np.int32)),
        ("optimizer.model.norm.weight.exp_avg", np.zeros(1, np.float32)),
        ("optimizer.model.norm.weight.step", np.zeros(1, np.float32)),
        ("optimizer.model.norm.weight.step", np.zeros((), np.int64)),
    ],
)
def test_a_tensor_of_another_shape_or_dtype_is_refused_by_name(
    trainer_of: Build, name: str, replacement: np.ndarray
) -> None:
    trainer: Trainer = trainer_of()
    state = dict(trainer.state())
    state[name] = state[name].copy()
    trainer.restore(state)
    with pytest.raises(MalformedError, match=f"anchor: {name} is torch"):
        trainer.restore(state | {name: Tensor.of(replacement)})


@pytest.mark.parametrize(
    "position", [np.zeros((), np.float32), np.zeros(0, np.int64), np.zeros(3, np.int64), np.asarray(-1, np.int64)]
)
def test_a_position_that_is_no_number_of_steps_is_refused(trainer_of: Build, position: np.ndarray) -> None:
    trainer: Trainer = trainer_of()
    with pytest.raises(MalformedError, match="position"):
        trainer.restore(dict(trainer.state()) | {"position.step": Tensor.of(position)})
    trainer.restore(dict(trainer.state()) | {"position.step": Tensor.of(np.asarray(5, np.int64))})
    assert trainer.index == 5


@pytest.mark.parametrize("name", ["weights.model.norm.weight", "rng.torch_cpu", "position.step"])
def test_a_state_that_lacks_or_adds_a_tensor_is_refused_by_name(trainer_of: Build, name: str) -> None:
    trainer: Trainer = trainer_of()
    state = dict(trainer.state())
    with pytest.raises(MalformedError, match=f"lacks .*{name}"):
        trainer.restore({key: value for key, value in state.items() if key != name})
    with pytest.raises(MalformedError, match=f"unknown .*{name}.more"):
        trainer.restore(state | {f"{name}.more": state[name]})


def test_generators_of_cuda_devices_belong_to_the_machine(trainer_of: Build) -> None:
    check_names({"a"}, {"a", "rng.torch_cuda_0", "rng.torch_cuda_1"})
    check_names({"a", "rng.torch_cuda_0"}, {"a"})
    trainer: Trainer = trainer_of()
    trainer.restore(dict(trainer.state()) | {"rng.torch_cuda_0": Tensor.of(np.zeros(16, np.uint8))})
    for name in ("rng.torch_cud", "rng.numpy", "weights.rng.torch_cuda_0"):
        with pytest.raises(MalformedError, match=name):
            check_names({"a"}, {"a", name})


@pytest.mark.parametrize(
    "state",
    [
        np.zeros(0, np.uint8),
        np.zeros(100, np.uint8),
        np.zeros(5056, np.uint8),
        np.full(5056, 255, np.uint8),
        np.zeros(5056, np.float32),
        np.zeros(1 << 20, np.uint8),
        np.zeros((), np.uint8),
    ],
)
def test_bytes_that_are_no_state_of_a_generator_are_refused(state: np.ndarray) -> None:
    held = torch.get_rng_state()
    with pytest.raises(MalformedError, match="anchor: rng state refused"):
        restore_generators({"rng.torch_cpu": Tensor.of(state)}, "cpu")
    assert torch.equal(torch.get_rng_state(), held)


def test_a_generator_continues_where_it_stood() -> None:
    kept = {name: tensor.copy() for name, tensor in generator_state("cpu").items()}
    first = torch.rand(5)
    restore_generators(kept, "cpu")
    assert torch.equal(torch.rand(5), first)


def test_a_loop_of_somebodys_own_also_keeps_the_generators_of_python_and_numpy() -> None:
    def drawn() -> dict[str, bytes]:
        return {name: bytes(tensor.data) for name, tensor in generator_state("cpu", foreign=True).items()}

    before = drawn()
    random.random()
    after_python = drawn()
    np.random.random()
    after_numpy = drawn()
    assert before.keys() == {"rng.torch_cpu", "rng.python", "rng.numpy"}
    assert {name for name in before if before[name] != after_python[name]} == {"rng.python"}
    assert {name for name in before if after_python[name] != after_numpy[name]} == {"rng.numpy"}
    assert generator_state("cpu").keys() == {"rng.torch_cpu"}


def test_a_refused_tensor_is_named_with_what_was_wanted() -> None:
    live = {"weights.a": torch.zeros(2)}
    restore_tensors(live, {"weights.a": Tensor.of(np.ones(2, np.float32))})
    assert live["weights.a"].tolist() == [1, 1]
    with pytest.raises(MalformedError, match=r"weights.a is torch.float32 \(3,\), not torch.float32 \(2,\)"):
        restore_tensors(live, {"weights.a": Tensor.of(np.ones(3, np.float32))})
