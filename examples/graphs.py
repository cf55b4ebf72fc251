"""The story of `docs/graphs.md` as one script: capture, slice, run elsewhere, record, open, judge.

python examples/graphs.py OUT
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import tallystick
import tallystick.jax
import tallystick.torch
from tallystick.graphs import Reference, execute, save_program, subgraph


class Classifier(nn.Module):
    """Two linear layers around a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Probabilities of four classes for each row of `x`."""
        hidden = self.norm(nn.functional.gelu(self.first(x)))
        return self.last(hidden).softmax(-1)


def main(out: str) -> None:
    """Capture a classifier, run a slice of it on three engines, and judge the operators of a recorded call."""
    torch.manual_seed(0)
    model, x = Classifier().eval(), torch.randn(8, 16)
    captured = tallystick.torch.capture(model, x)
    save_program(Path(out) / "classifier.json", captured.graph, captured.constants, captured.modules)
    compare_engines(captured, x)
    judge_call(model, x, Path(out))


def compare_engines(captured: tallystick.torch.CapturedModel, x: torch.Tensor) -> None:
    """Run the GELU and the normalization alone, on the values that PyTorch computed before them."""
    values = {**captured.bindings, "inputs.x": tallystick.torch.to_tensor(x)}
    head, middle = subgraph(captured.graph, [0]), subgraph(captured.graph, [1, 2])
    torch_engine = tallystick.torch.TorchEngine()
    values |= execute(head, values, torch_engine)
    expected = execute(middle, values, torch_engine)["n2"]
    for engine in (tallystick.jax.JaxEngine(), Reference()):
        found = execute(middle, values, engine)["n2"]
        print(f"{engine.name}: {np.abs(found.values() - expected.values()).max():.1e} from torch")


def judge_call(model: nn.Module, x: torch.Tensor, out: Path) -> None:
    """Record one call, open its operators, and judge each by the reference and its bounds."""
    with tallystick.record_inference(model, out / "calls"):
        model(x)
    tallystick.open_operators(out / "calls", 1, out / "opened")
    verdict = tallystick.judge(out / "opened")
    worst = max(finding.distance for finding in verdict.findings if finding.name == "operator")
    print(f"{verdict.outcome}: the worst operator takes {worst:.0%} of its bound")


if __name__ == "__main__":
    main(sys.argv[1])
