"""Each optimizer's captured arithmetic has the bits of the library's own, over steps with groups of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import Adafactor

from tallystick.engines.torch.capture.training_step import capture_training_step
from tallystick.engines.torch.tensors import to_tensor
from tests.support.captured_steps import Replay, native_step

STEPS = 8
Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
    "sgd, maximize": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, maximize=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rmsprop, centered": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9, maximize=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.25),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "nadam, decoupled": lambda p: torch.optim.NAdam(p, lr=0.01, decoupled_weight_decay=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01, betas=(0.8, 0.9)),
    "radam, decoupled": lambda p: torch.optim.RAdam(p, lr=0.01, decoupled_weight_decay=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.3),
    "adafactor, settings": lambda p: torch.optim.Adafactor(p, lr=0.01, eps=(1e-6, 1e-2), d=1.5, maximize=True),
    "adafactor of transformers": lambda p: Adafactor(p),
    "adafactor of transformers, warm-up": lambda p: Adafactor(p, warmup_init=True, beta1=0.9, eps=(1e-30, 0.4)),
    "adafactor of the Trainer": lambda p: Adafactor(p, lr=0.01, scale_parameter=False, relative_step=False),
    "adamw, tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "adam, tensor of F64": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01, dtype=torch.float64)),
    "adamw fused, tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), fused=True),
    "sgd, tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9),
}


def network() -> nn.Module:
    torch.manual_seed(3)
    layers = (nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5), nn.Tanh(), nn.Linear(5, 3))
    return nn.Sequential(*layers).requires_grad_()


def batch(index: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(index)
    x = torch.randn((6, 2, 8), generator=draw)
    return {"x": x * (index + 1), "y": torch.randint(3, (6,), generator=draw)}


def loss_of(model: Any, examples: Any) -> torch.Tensor:
    return functional.cross_entropy(model(examples["x"]), examples["y"])


def grouped(model: nn.Module) -> list[dict[str, Any]]:
    """Weights that decay, and biases that do not."""
    parameters = [*model.parameters()]
    decaying = [each for each in parameters if each.dim() > 1]
    return [{"params": decaying, "weight_decay": 0.1}, {"params": [each for each in parameters if each.dim() < 2]}]


def assert_bits(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    captured = capture_training_step(model, loss_of, optimizer, batch(0))
    replay = Replay(captured, model, optimizer)
    replay.rates = [float(group["lr"] or 0.0) for group in optimizer.param_groups]
    for step in range(1, steps + 1):
        outputs = replay.step(step, [batch(step)])
        expected = native_step(model, loss_of, optimizer, [batch(step)], None)
        assert [n for n, value in expected.items() if to_tensor(value) != to_tensor(outputs[n])] == [], step
    assert {name for name in expected if not name.startswith("gradients.")} | {"position.step"} == set(captured.state)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_steps_have_the_bits_of_the_librarys(name: str) -> None:
    model = network()
    assert_bits(model, OPTIMIZERS[name](grouped(model)))


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_moves_matrices_with_the_bits_of_pytorchs(adjust: str, nesterov: bool) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 40, bias=False), nn.Tanh(), nn.Linear(40, 3, bias=False))
    wide, tall = (each for each in model.parameters())
    groups = [{"params": [wide], "weight_decay": 0.1}, {"params": [tall], "lr": 0.05}]
    assert_bits(model, torch.optim.Muon(groups, lr=0.02, nesterov=nesterov, adjust_lr_fn=adjust))
