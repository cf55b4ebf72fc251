"""A step of a small network in the manner of MobileNetV2 is judged without objection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.files import load_program
from tallystick.programs.graph import Node
from tallystick.verdicts.opening.judge import OpeningRequest, judge_opening

torch = pytest.importorskip("torch")
SIDE, CLASSES, BATCH = 12, 5, 4


def mobile(momentum: float) -> Any:
    """A stem, one inverted residual (Sandler et al. 2018, arXiv:1801.04381) and a head; one channel is dead."""
    nn = torch.nn

    def block(inner: int, outer: int, kernel: int, groups: int = 1, stride: int = 1) -> list[Any]:
        conv = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(outer, momentum=momentum)]

    layers = [*block(3, 8, 3, stride=2), nn.ReLU6(), *block(8, 24, 1), nn.ReLU6(), *block(24, 24, 3, groups=24)]
    layers += [nn.ReLU6(), *block(24, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        model[0].weight[0] = 0
    return model


def loss_of(model: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def batch_of() -> Any:
    return torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(0, CLASSES, (BATCH,))


def recorded(out: Path, momentum: float) -> Path:
    """Three steps with a step graph."""
    torch.manual_seed(0)
    model = mobile(momentum)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=4e-5)
    settings: dict[str, Any] = {"anchor_stride": 1, "summaries": ["exact"], "loss": loss_of, "example": batch_of()}
    with tallystick.record_training(out, model, optimizer, **settings) as recorder:
        for _ in range(3):
            batch = batch_of()
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=batch)
    return out


def opened(run: Path, out: Path, node: int | None = None) -> Path:
    from tallystick.tally.training import open_operators

    open_operators(run, 2, out, node=node)
    return out


@pytest.mark.parametrize("momentum", [0.1, 0.997])
def test_an_honest_step_of_it_is_judged_without_objection(momentum: float, one_thread: None, tmp_path: Path) -> None:
    opening = opened(recorded(tmp_path / "run", momentum), tmp_path / "opening")
    names = {node.operator for node in load_program(opening / "graph.json")[0].nodes}
    assert {"aten.convolution.default", "aten.convolution_backward.default"} <= names
    assert any("batch_norm" in name for name in names)
    verdict = judge_opening(opening, OpeningRequest())
    assert [str(finding) for finding in verdict.objections] == []
    assert verdict.outcome == "accepted"


def test_running_statistics_of_another_momentum_are_rejected(
    one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.engines.torch.engine import TorchEngine

    class Hasty(TorchEngine):
        def prepare(self, node: Node) -> Any:
            hastens = {"momentum": 0.998} if "momentum" in node.attributes else {}
            return super().prepare(replace(node, attributes={**node.attributes, **hastens}))

    monkeypatch.setattr("tallystick.tally.training.TorchEngine", Hasty)
    # the record of a forger would name the state that such statistics lead to
    monkeypatch.setattr("tallystick.verdicts.opening.judge.check_binding", lambda _: None)
    run = recorded(tmp_path / "run", 0.997)
    nodes = load_program(RunDirectory(run).graph_path)[0].nodes
    normalizes = next(node.number for node in nodes if "batch_norm_legit_functional" in node.operator)
    verdict = judge_opening(opened(run, tmp_path / "opening", normalizes), OpeningRequest())
    assert verdict.outcome == "rejected"
    assert {finding.name for finding in verdict.objections} == {"operator"}
