"""A small program on disk with a few sets of inputs, and stacks that start quickly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.files import save_program
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.tally.calibration import operators as calibrate
from tallystick.tally.calibration.stacks import Stack, stack_named

QUICK_STACKS = tuple(map(stack_named, ("NumPy", "NumPy SSE", "plain loops")))


@pytest.fixture(scope="session")
def graph() -> Graph:
    x, w, y = (TensorSpec("F32", shape) for shape in ((3, 64), (40, 64), (3, 40)))
    nodes = (
        Node(0, "aten.linear.default", {"input": "inputs.x", "weight": "weights.w", "bias": None}, {}, (y,)),
        Node(1, "aten._softmax.default", {"self": "n0"}, {"dim": 1, "half_to_float": False}, (y,)),
        Node(2, "aten.relu.default", {"self": "n0"}, {}, (y,)),
    )
    inputs = (Input("inputs.x", Role.INPUT, x), Input("weights.w", Role.WEIGHT, w))
    return Graph("aten", GraphForm.LOGICAL, inputs, (), nodes, (Output("outputs.0", "n1"), Output("outputs.1", "n2")))


@pytest.fixture
def program(graph: Graph, tmp_path: Path) -> Path:
    """See `write_program`."""
    return write_program(graph, tmp_path)


def write_program(graph: Graph, place: Path) -> Path:
    """The graph at `program.json`, beside it a folder `inputs` with six sets."""
    random = np.random.default_rng(4)
    folder = place / "inputs"
    write_state(folder / "weights.safetensors", {"weights.w": _normal(random, 40, 64)})
    for index in range(6):
        write_state(folder / f"{index}.safetensors", {"inputs.x": _normal(random, 3, 64)})
    return save_program(place / "program.json", graph, {})


@pytest.fixture
def quick_stacks(monkeypatch: pytest.MonkeyPatch) -> tuple[Stack, ...]:
    monkeypatch.setattr(calibrate, "stacks_here", lambda _: QUICK_STACKS)
    return QUICK_STACKS


def _normal(random: np.random.Generator, *shape: int) -> Tensor:
    return Tensor.of(random.standard_normal(shape).astype("<f4"))
