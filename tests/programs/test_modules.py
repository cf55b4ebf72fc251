"""Module paths of nodes: kept beside the graph, outside its root, and ignored where they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.tensors import TensorSpec
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import load_graph, load_modules, modules_path, save_program
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role

SPEC = TensorSpec("F32", (2,))
NODES = tuple(
    Node(number, "aten.neg.default", {"self": read}, {}, (SPEC,))
    for number, read in ((0, "inputs.x"), (3, "n0"), (7, "n3"))
)
GRAPH = Graph("aten", GraphForm.LOGICAL, (Input("inputs.x", Role.INPUT, SPEC),), (), NODES, (Output("y", "n7"),))
PATHS = {0: "model.first", 7: "backward of model.first"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save_program(tmp_path / "graph.json", GRAPH, {}, PATHS)


def test_paths_come_back_and_are_no_part_of_the_graph(file: Path) -> None:
    named = load_modules(file, load_graph(file))
    assert (named.paths, named.problem) == (PATHS, "")
    assert (named.place(0), named.place(3)) == (" in model.first", "")
    with_paths = file.read_bytes()
    save_program(file, GRAPH, {})
    assert file.read_bytes() == with_paths


def test_a_graph_without_paths_has_no_file_and_no_problem(file: Path) -> None:
    save_program(file, GRAPH, {})
    assert not modules_path(file).exists()
    assert load_modules(file, GRAPH).problem == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nodes": [0, 1]}, "it names 2 nodes, and the graph has 3"),
        ({"nodes": [0, 1, 9]}, "a name that is not there"),
        ({"names": ["", "a\x1b[2J", "b"]}, "cannot be printed"),
        ({"names": ["", "a" * 600, "b"]}, "too long"),
        ({"names": ["", 5, "b"]}, "is no string"),
        ({"nodes": [0, -1, 0]}, "is no natural number"),
        ({"modules": 2}, "its format is unknown"),
        ({"graph": "sha256:" + "0" * 64}, "it belongs to another graph"),
        ({"extra": 1}, "unknown field"),
    ],
)
def test_what_does_not_fit_is_ignored_and_the_reason_said(file: Path, change: dict[str, Any], reason: str) -> None:
    document = json.loads(modules_path(file).read_bytes())
    modules_path(file).write_bytes(encode(document | change))
    named = load_modules(file, GRAPH)
    assert not named.paths
    assert named.problem.startswith("graph.modules.json is ignored: ")
    assert reason in named.problem


def test_a_file_that_is_no_json_is_ignored(file: Path) -> None:
    modules_path(file).write_bytes(b"\xff")
    assert load_modules(file, GRAPH).problem


def test_a_captured_model_and_step_name_their_modules() -> None:
    torch = pytest.importorskip("torch")
    from tallystick.engines.torch.capture.model import capture
    from tallystick.engines.torch.capture.training_step import capture_training_step

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    x = torch.from_numpy(np.ones((2, 3), np.float32))
    captured = capture(model, x)
    by_operator = {node.operator: captured.modules[node.number] for node in captured.graph.nodes}
    assert by_operator["aten.tanh.default"] == "1"

    def loss(called: Any, batch: Any) -> Any:
        return called(batch["x"]).square().mean()

    step = capture_training_step(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), {"x": x})
    places = {node.operator: step.modules[node.number] for node in step.graph.nodes}
    assert places["aten.tanh_backward.default"] == "backward of 1"
    assert places["aten.addcmul.default"] == "update of 2.bias"
    assert step.modules[step.graph.nodes[0].number] == "0"
    assert {"loss", "gradient norm", "backward of loss", "backward of 0", "update of 0.weight"} <= {
        *step.modules.values()
    }
    assert graph_root(replace(step, modules={}).graph) == graph_root(step.graph)
