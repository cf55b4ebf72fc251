"""A captured model gives the bits of the eager one, and its graph is the same in every process."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.capture import export
from tallystick.engines.torch.capture.model import CapturedModel, capture
from tallystick.engines.torch.capture.training_step import capture_training_step
from tallystick.engines.torch.engine import TorchEngine
from tallystick.programs.encoding import graph_root

MODELS = runpy.run_path(str(Path(__file__).with_name("architectures.py")))
TRIED = [name for name in MODELS["ARCHITECTURES"] if "dropout" not in name]


def built(name: str) -> tuple[nn.Module, dict[str, Any]]:
    model, example = MODELS["build"](name)
    return model.eval(), example


def run(captured: CapturedModel, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    engine = TorchEngine()
    inputs = {f"inputs.{name}": value for name, value in given.items() if isinstance(value, torch.Tensor)}
    bound = {name: engine.load(tensor) for name, tensor in captured.bindings.items()}
    return engine.compile(captured.graph)(bound | inputs)


def changed(given: dict[str, Any]) -> dict[str, Any]:
    """Another batch of the same shapes: nothing of the example may be baked in."""
    return {
        name: value.flip(0) * 0.5 if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in given.items()
    } | {name: MODELS["tokens"](9) for name in given if name == "input_ids"}


@pytest.mark.parametrize("name", TRIED)
def test_a_captured_model_gives_the_bits_of_the_eager_one(name: str) -> None:
    model, given = built(name)
    captured = capture(model, (), given)
    for batch in (given, changed(given)):
        with torch.no_grad():
            expected = model(**batch)
        outputs = run(captured, batch)
        named = {"0": expected} if isinstance(expected, torch.Tensor) else dict(expected.items())
        assert outputs.keys() == {f"outputs.{key}" for key in named}
        assert all(torch.equal(outputs[f"outputs.{key}"], value) for key, value in named.items())


def test_fused_attention_stays_one_operator_and_tied_weights_appear_once() -> None:
    captured = capture(*_positional("gpt2-sdpa"))
    operators = [node.operator for node in captured.graph.nodes]
    assert operators.count("aten.scaled_dot_product_attention.default") == 1
    assert "weights.transformer.wte.weight" in captured.weights
    assert "weights.lm_head.weight" not in captured.weights


def _positional(name: str) -> tuple[Any, ...]:
    model, given = built(name)
    return model, (), given


def test_nodes_are_numbered_in_order_and_every_one_is_needed() -> None:
    graph = capture(*_positional("llama-eager")).graph
    assert [node.number for node in graph.nodes] == list(range(len(graph.nodes)))
    read = {ref for node in graph.nodes for ref in node.refs} | {output.value for output in graph.outputs}
    assert all(read & {ref for ref in node.outputs if ref} for node in graph.nodes)
    made = {value.name for value in (*graph.inputs, *graph.constants)}
    for node in graph.nodes:
        assert set(node.refs) <= made
        made |= {ref for ref in node.outputs if ref}


def test_a_tensor_of_the_program_becomes_a_constant_with_its_bytes() -> None:
    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor([1.0, 2.0])

    captured = capture(Shifted(), torch.zeros(2))
    assert [tensor.values().tolist() for tensor in captured.constants.values()] == [[1.0, 2.0]]
    assert run(captured, {"x": torch.ones(2)})["outputs.0"].tolist() == [2.0, 3.0]


def test_writing_in_place_and_through_views_becomes_functional() -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            y[0].add_(1)
            return functional.relu_(y)

    captured, x = capture(Writing(), torch.zeros(2, 3)), torch.tensor([[-1.0, 2, 3], [4, -5, 6]])
    held = x.clone()
    assert torch.equal(run(captured, {"x": x})["outputs.0"], Writing()(x.clone()))
    assert torch.equal(x, held)
    assert not any(node.operator.split(".")[1].endswith("_") for node in captured.graph.nodes)


COMPOSITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x.flip(0)),
    "a shifted einsum": lambda x: torch.einsum("nhwc->nchw", x[None]),
    "pooling": lambda x: functional.adaptive_avg_pool1d(x, 2),
    "whole quotients": lambda x: x[0].argsort() // 2,
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_an_operator_that_pytorch_runs_in_parts_is_captured_in_these_parts(name: str) -> None:
    class Composite(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return COMPOSITES[name](x)

    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    captured = capture(Composite(), torch.zeros(3, 5, 4))
    assert torch.equal(run(captured, {"x": x})["outputs.0"], COMPOSITES[name](x))


def test_statistics_of_batch_norm_are_outputs_in_training() -> None:
    model, given = MODELS["build"]("cnn")
    outputs = run(capture(model.train(), (given["input"],)), given)
    model(given["input"])
    assert torch.equal(outputs["buffers.1.running_mean"], model[1].running_mean)
    assert torch.equal(outputs["buffers.1.running_var"], model[1].running_var)


GRAPHS = """
import runpy, sys, torch
from tallystick.engines.torch.capture.model import capture
from tallystick.engines.torch.capture.training_step import capture_training_step
from tallystick.programs.encoding import graph_root
model, given = runpy.run_path(sys.argv[1])["build"]("cnn")
optimizer = torch.optim.AdamW(model.parameters())
step = capture_training_step(model, lambda called, batch: called(batch["input"]).square().mean(), optimizer, given)
print(graph_root(step.graph), graph_root(capture(model.eval(), (), given).graph))
"""


def test_graphs_are_the_same_in_every_process() -> None:
    path = str(Path(__file__).with_name("architectures.py"))
    elsewhere = subprocess.run(
        [sys.executable, "-c", GRAPHS, path],
        env=os.environ | {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    model, given = MODELS["build"]("cnn")
    optimizer = torch.optim.AdamW(model.parameters())
    step = capture_training_step(model, lambda called, batch: called(batch["input"]).square().mean(), optimizer, given)
    here = (step.graph, capture(model.eval(), (), given).graph)
    assert elsewhere.stdout.split() == [str(graph_root(graph)) for graph in here]


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


class Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.nonzero()


class Complex(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).real


def test_no_node_keeps_its_lines_of_source_and_the_graph_is_the_same_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines_and_root() -> tuple[bool, str]:
        args, given = (torch.ones(2, 4),), dict[str, Any]()
        nodes = export.exported_program(model, args, given).graph.nodes
        return any("stack_trace" in node.meta for node in nodes), str(graph_root(capture(model, args, given).graph))

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    without, root = lines_and_root()
    assert not torch.fx.config.do_not_emit_stack_traces
    monkeypatch.setattr(export, "NO_STACK_TRACES", "disable_progress")
    assert (without, lines_and_root()) == (False, (True, root))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (Branching(), "data-dependent"),
        (Counting(), "nonzero"),
        (Complex(), "fft"),
        (nn.Dropout(0.5), "dropout"),
    ],
)
def test_what_cannot_be_captured_is_refused_by_name(model: nn.Module, named: str) -> None:
    with pytest.raises(UnavailableError, match=f"(?i){named}"):
        capture(model.train(), torch.ones(4))


def test_dropout_that_is_off_is_captured() -> None:
    x = torch.ones(4)
    assert torch.equal(run(capture(nn.Dropout(0.5).eval(), x), {"input": x})["outputs.0"], x)
