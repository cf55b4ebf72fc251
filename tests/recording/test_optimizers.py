"""Runs of every kind of optimizer: recorded with three lines, replayed from their graph, or said why not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")
nn = torch.nn

Audit = Callable[[Path], Any]
STEPS = 5


@pytest.fixture
def audit(one_thread: None) -> Audit:
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training
    from tests.support.this_machine import verifier_stack

    def judged(path: Path) -> Any:
        run, asked = RunDirectory(path), Policy(full=True)
        return audit_training(run, asked, bytes(32), verifier_stack(run, None, asked)).verdict

    return judged


class Lion(torch.optim.Optimizer):  # type: ignore[misc, name-defined]
    """Algorithm 2 of Chen et al. 2023, under the name of the package that people use."""

    _init_lr, decoupled_wd = 1e-4, False

    def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for each in group["params"]:
                mean = self.state[each].setdefault("exp_avg", torch.zeros_like(each))
                each.mul_(1 - group["lr"] * group["weight_decay"])
                each.add_((mean * first).add(each.grad, alpha=1 - first).sign(), alpha=-group["lr"])
                mean.mul_(second).add_(each.grad, alpha=1 - second)


Lion.__module__ = "lion_pytorch.lion_pytorch"


class Strange(torch.optim.Optimizer):  # type: ignore[misc, name-defined]
    """An optimizer of somebody's own, with integers, bytes and a matrix for each weight."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in (each for group in self.param_groups for each in group["params"]):
            kept = self.state[each]
            kept["codes"] = (each.grad * 16).clamp(-128, 127).to(torch.int8)
            kept["scales"] = each.grad.abs().amax().reshape(1, 1)
            kept["count"] = kept.get("count", 0) + 1
            each.add_(kept["codes"].float(), alpha=-0.01)


def network() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def train(out: Path, optimizers: Callable[[Any], list[Any]], steps: int = STEPS, skips: int = 0) -> list[str]:
    """Train a small network; the last optimizer of several leaves out step `skips`. Returns the warnings."""
    torch.manual_seed(0)
    model = network()
    several = optimizers(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = several if len(several) > 1 else several[0]
        with tallystick.record_training(out, model, given, anchor_stride=2) as recorder:
            for step in range(1, steps + 1):
                x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                model.zero_grad()
                loss.backward()
                for each in several[:-1] if step == skips else several:
                    each.step()
                recorder.step(loss, batch=(x, x.sum(1, keepdim=True)))
    return [str(each.message) for each in caught if each.category is RuntimeWarning]


def spec_of(path: Path) -> Spec:
    return RunDirectory(path).spec()


def matrices_and_rest(model: Any) -> list[Any]:
    weights = [each for each in model.parameters() if each.dim() == 2]
    biases = [each for each in model.parameters() if each.dim() == 1]
    return [torch.optim.Muon(weights, lr=0.02), torch.optim.AdamW(biases, lr=0.01)]


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.5)),
        ("adagrad", lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1)),
        ("nadam", lambda p: torch.optim.NAdam(p, lr=0.01)),
        ("adafactor", lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.1)),
        ("adamw", lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False)),
        ("lion", lambda p: Lion(p, lr=0.01, weight_decay=0.1)),
    ],
)
def test_a_run_of_another_optimizer_is_replayed_and_accepted(
    kind: str, optimizer: Any, tmp_path: Path, audit: Audit
) -> None:
    assert train(tmp_path / "run", lambda model: [optimizer(model.parameters())]) == []
    stated = spec_of(tmp_path / "run").optimizer
    assert stated is not None
    assert [rule.kind for rule in stated] == [kind]
    verdict = audit(tmp_path / "run")
    assert verdict.outcome == "accepted", verdict


def test_optimizers_that_step_in_turn_are_one_graph(tmp_path: Path, audit: Audit) -> None:
    assert train(tmp_path / "run", matrices_and_rest) == []
    stated = spec_of(tmp_path / "run").optimizer
    assert stated is not None
    assert [rule.kind for rule in stated] == ["muon", "adamw"]
    assert audit(tmp_path / "run").outcome == "accepted"


def test_an_optimizer_that_leaves_out_a_turn_is_told_at_once(tmp_path: Path, audit: Audit) -> None:
    said, *_ = train(tmp_path / "run", matrices_and_rest, skips=3)
    assert "step 3: the optimizer stepped 0 times since the last record" in said
    assert audit(tmp_path / "run").outcome == "inconclusive"


def test_an_optimizer_of_somebodys_own_is_recorded_with_all_its_state(tmp_path: Path, audit: Audit) -> None:
    (said,) = train(tmp_path / "run", lambda model: [Strange(model.parameters())])
    assert "Strange cannot be captured; these can: Adadelta" in said
    assert said.endswith("use one of them")
    verdict = audit(tmp_path / "run")
    assert verdict.outcome == "inconclusive"
    state = tallystick_state(tmp_path / "run")
    assert state["optimizer.0.weight.codes"].dtype == "I8"
    assert state["optimizer.0.weight.scales"].shape == (1, 1)
    assert state["optimizer.0.weight.count"].values() == STEPS


def tallystick_state(path: Path) -> Any:
    from tallystick.formats.store.run import Anchors

    return Anchors(path).read(STEPS)
