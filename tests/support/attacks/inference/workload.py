"""A committed graph with its weights, inputs and engine: the base of inference studies and frauds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tallystick.core.tensors import State, Tensor
from tallystick.programs.execution import Arguments, Engine
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.tally.calibration.operator_runs import all_values

ValuesByRef = dict[Ref, Tensor]
"""Every value of one run, which a prover opens on request."""


@dataclass(frozen=True)
class StudyWorkload:
    """A graph with all its inputs bound, and the output from which a decision is read.

    `decision` names an output with scores on its last axis; the index of the largest one is the answer.
    """

    name: str
    graph: Graph
    bindings: State
    engine: Engine
    decision: str

    def with_bindings(self, bindings: State) -> StudyWorkload:
        """The same graph with some bindings replaced."""
        return replace(self, bindings={**self.bindings, **bindings})

    @property
    def decision_ref(self) -> Ref:
        """The reference of the value with the scores."""
        return next(output.value for output in self.graph.outputs if output.name == self.decision)


def run_values(workload: StudyWorkload, change: Callable[[Node, Arguments, Any], Any] | None = None) -> ValuesByRef:
    """Every value of an honest run; `change` may replace the results of a node before they are passed on."""
    engine = workload.engine if change is None else _Changed(workload.engine, change)
    return all_values(workload.graph, workload.bindings, engine)


def answer(workload: StudyWorkload, values: Mapping[Ref, Tensor]) -> int:
    """The index of the largest score, at the last position."""
    scores = values[workload.decision_ref].values()
    return int(np.argmax(scores.reshape(-1, scores.shape[-1])[-1]))


@dataclass(frozen=True)
class _Changed:
    """An engine that changes the results of each node by `change`."""

    inner: Engine
    change: Callable[[Node, Arguments, Any], Any]

    @property
    def name(self) -> str:
        return self.inner.name

    def load(self, tensor: Tensor) -> Any:
        return self.inner.load(tensor)

    def unload(self, array: Any, dtype: str) -> Tensor:
        return self.inner.unload(array, dtype)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        run = self.inner.prepare(node)
        return lambda arguments: self.change(node, arguments, run(arguments))
