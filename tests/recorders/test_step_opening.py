"""What an opening costs, counted: each operator runs once, each value is digested once and lies in the file once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tallystick.graphs.graph import Node
from tallystick.judging.opening.values import VALUES, value_name
from tallystick.recorders import value_noting
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.safetensors import StateFile
from tallystick.tensors.tensor import Tensor
from tests.judging.leaf.leaves import NumpyEngine, bindings, classifier, opened


class CountingEngine(NumpyEngine):
    """Counts how often each node is prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared = Counter[int]()

    def prepare(self, node: Node) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        self.prepared[node.number] += 1
        return super().prepare(node)


def test_each_operator_runs_once_and_each_value_is_digested_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digested: list[Tensor] = []
    real = value_noting.tensor_digest
    monkeypatch.setattr(
        value_noting, "tensor_digest", lambda tensor, *threads: [digested.append(tensor), real(tensor, *threads)][1]
    )
    engine, graph = CountingEngine(), classifier()
    opened(tmp_path / "opening", engine=engine)  # runs the graph itself before it opens it
    assert engine.prepared == dict.fromkeys((node.number for node in graph.nodes), 2)
    assert len(digested) == len(graph.specs())


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


@pytest.mark.parametrize(("small", "large"), [(0, 1 << 20), (0, 64), (64, 128)])
def test_values_that_are_digested_elsewhere_or_later_lie_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, large: int
) -> None:
    free = opened(tmp_path / "free")
    monkeypatch.setattr(value_noting, "SMALL_BYTES", small)
    monkeypatch.setattr(value_noting, "GROUP_BYTES", large)
    monkeypatch.setattr(value_noting, "WAITING_BYTES_MAX", large)
    slow = opened(tmp_path / "slow")
    assert slow.whole.opening == free.whole.opening
    assert (tmp_path / "slow" / VALUES).read_bytes() == (tmp_path / "free" / VALUES).read_bytes()
