"""What an opening costs, counted: each operator runs once, each value is digested once and lies in the file once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tallystick.audits import opening
from tallystick.core.safetensors import StateFile
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.torch.engine import TorchEngine
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.verdicts.opening.files import VALUES, value_name
from tests.verdicts.leaf.leaves import F32, NumpyEngine, bindings, classifier, node, opened


class CountingEngine(NumpyEngine):
    """Counts how often each node is prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared = Counter[int]()

    def prepare(self, node: Node) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        self.prepared[node.number] += 1
        return super().prepare(node)


def digested_tensors(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors that openings hash from now on."""
    found: list[Tensor] = []
    real = opening.digest_tensor
    monkeypatch.setattr(
        opening, "digest_tensor", lambda tensor, *threads: [found.append(tensor), real(tensor, *threads)][1]
    )
    return found


def test_each_operator_runs_once_and_each_value_is_digested_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digested = digested_tensors(monkeypatch)
    engine, graph = CountingEngine(), classifier()
    opened(tmp_path / "opening", engine=engine)  # runs the graph itself before it opens it
    assert engine.prepared == dict.fromkeys((node.number for node in graph.nodes), 2)
    assert len(digested) == len(graph.specs())


def views() -> Graph:
    """A sum, its transpose, the transpose of that, and the sum in another shape; and a sum of its own."""
    nodes = (
        node(0, "add.Tensor", {"self": "inputs.x", "other": "inputs.x"}, [[F32, 2, 3]], alpha=1),
        node(1, "t.default", {"self": "n0"}, [[F32, 3, 2]]),
        node(2, "t.default", {"self": "n1"}, [[F32, 2, 3]]),
        node(3, "view.default", {"self": "n0"}, [[F32, 6]], size=(6,)),
        node(4, "t.default", {"self": "inputs.x"}, [[F32, 3, 2]]),
        node(5, "t.default", {"self": "n4"}, [[F32, 2, 3]]),
        node(6, "add.Tensor", {"self": "n5", "other": "n5"}, [[F32, 2, 3]], alpha=1),
    )
    inputs = (Input("inputs.x", Role.INPUT, TensorSpec(F32, (2, 3))),)
    outputs = (Output("outputs.z", "n3"), Output("outputs.y", "n6"), Output("outputs.t", "n2"))
    return read_graph(graph_bytes(Graph("aten", GraphForm.LOGICAL, inputs, (), nodes, outputs)))


X = {"inputs.x": Tensor.of(np.arange(6, dtype=np.float32).reshape(2, 3))}


def test_a_view_of_the_bytes_of_another_value_is_not_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = opened(tmp_path / "numpy", graph=views(), given=X)
    digested = digested_tensors(monkeypatch)
    leaves = opened(tmp_path / "torch", graph=views(), given=X, engine=TorchEngine())
    assert len(digested) == 5, "the input, two sums, and two transposes; not two transposes of these, nor a shape"
    assert leaves.whole.lines == everything.whole.lines
    assert (tmp_path / "torch" / VALUES).read_bytes() == (tmp_path / "numpy" / VALUES).read_bytes()


class ReusingEngine(TorchEngine):
    """Says that it puts each array where the third one before it lay."""

    def __init__(self) -> None:
        super().__init__()
        self._places = cycle((8, 16, 24))

    def place(self, array: torch.Tensor) -> int | None:
        return next(self._places)


def test_a_value_where_another_one_was_freed_is_hashed(tmp_path: Path) -> None:
    read = ["inputs.x", *(f"n{place}" for place in range(8))]
    nodes = tuple(node(place, "sin.default", {"self": ref}, [[F32, 2, 3]]) for place, ref in enumerate(read))
    inputs, outputs = (Input("inputs.x", Role.INPUT, TensorSpec(F32, (2, 3))),), (Output("outputs.z", "n8"),)
    graph = read_graph(graph_bytes(Graph("aten", GraphForm.LOGICAL, inputs, (), nodes, outputs)))
    free = opened(tmp_path / "free", graph=graph, given=X, engine=TorchEngine())
    reused = opened(tmp_path / "reused", graph=graph, given=X, engine=ReusingEngine())
    assert free.whole.lines == reused.whole.lines


def test_values_lie_in_the_order_of_the_graph(tmp_path: Path) -> None:
    leaves = opened(tmp_path / "opening")
    lines = map(leaves.whole.record, range(len(leaves.whole.graph.nodes)))
    given = [tensor_digest(bindings()[each.name]) for each in leaves.whole.graph.sources]
    given += [
        name for line, node in zip(lines, leaves.whole.graph.nodes, strict=True) for name in line.outputs.values()
    ]
    with StateFile(tmp_path / "opening" / VALUES) as file:
        placed = sorted(file.specs, key=lambda name: (file.specs[name].begin, file.specs[name].end))
    assert placed == list(dict.fromkeys(map(value_name, given)))


@pytest.mark.parametrize(("batch", "group"), [(1, 1 << 20), (1, 64), (128, 64), (1 << 20, 1 << 20)])
def test_values_that_are_digested_elsewhere_or_later_lie_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, group: int
) -> None:
    free = opened(tmp_path / "free")
    monkeypatch.setattr(opening, "BATCH_BYTES", batch)
    monkeypatch.setattr(opening, "GROUP_BYTES", group)
    monkeypatch.setattr(opening, "WAITING_BYTES_MAX", group)
    slow = opened(tmp_path / "slow")
    assert slow.whole.opening == free.whole.opening
    assert (tmp_path / "slow" / VALUES).read_bytes() == (tmp_path / "free" / VALUES).read_bytes()
