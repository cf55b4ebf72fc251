"""A template of a model is the graph that a capture at those sizes gives."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.engines.torch.capture.model import capture, capture_template
from tallystick.programs.encoding import graph_bytes

MODELS = runpy.run_path(str(Path(__file__).with_name("architectures.py")))
DYNAMIC = {"input_ids": {0: "batch", 1: "length"}}
RANGES = {"batch": (1, 9), "length": (2, 12)}


@pytest.mark.parametrize("name", ["gpt2-sdpa", "llama-eager"])
def test_bound_to_sizes_a_template_is_the_graph_captured_at_those_sizes(name: str) -> None:
    model, given = MODELS["build"](name)
    template = capture_template(model.eval(), given, DYNAMIC, RANGES)
    elsewhere = capture(model, (), {**given, "input_ids": MODELS["tokens"](0, 7, 11)}).graph
    assert graph_bytes(template.bind(batch=7, length=11)) == graph_bytes(elsewhere)


class Larger(nn.Module):
    """Another program from 4 rows on."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids * 2 if input_ids.shape[0] > 3 else input_ids + 1


def test_a_model_that_is_another_program_at_other_sizes_is_refused() -> None:
    with pytest.raises(UnavailableError, match="another program"):
        capture_template(Larger(), {"input_ids": torch.ones(2, 3)}, DYNAMIC, RANGES)


def test_dimensions_have_ranges() -> None:
    with pytest.raises(UsageError, match="range"):
        capture_template(Larger(), {"input_ids": torch.ones(2, 3)}, DYNAMIC, {"batch": (1, 9)})
    with pytest.raises(UsageError, match="too small"):
        capture_template(Larger(), {"input_ids": torch.ones(2, 3)}, DYNAMIC, RANGES | {"batch": (2, 3)})
