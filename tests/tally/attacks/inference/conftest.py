"""A small captured block with a residual branch, and a profile for it that any threshold fits into."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tallystick.core.tensors import Tensor
from tallystick.programs.encoding import graph_root
from tallystick.programs.graph import float_results, operands_of
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import operator
from tallystick.verdicts.bounds import errors_of, join, rounding_errors
from tallystick.verdicts.profiles import Calibrated, Profile
from tests.support.attacks.inference.workload import StudyWorkload, run_values

UNIT = 2.0**-24


@pytest.fixture(scope="session")
def workload() -> StudyWorkload:
    import torch
    from torch import nn

    from tallystick.engines.torch.capture.model import capture
    from tallystick.engines.torch.engine import TorchEngine

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(48, 96), nn.Linear(96, 48), nn.Linear(48, 6)
            self.norm = nn.LayerNorm(48)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(x + self.second(nn.functional.gelu(self.first(x)))))  # type: ignore[no-any-return]

    torch.manual_seed(5)
    found = capture(Block().eval(), (), {"x": torch.zeros(4, 48)})
    x = np.random.default_rng(1).standard_normal((4, 48)).astype("<f4")
    bindings = {**found.constants, **found.weights, "inputs.x": Tensor.of(x)}
    return StudyWorkload("block", found.graph, bindings, TorchEngine(), found.graph.outputs[0].name)


@pytest.fixture(scope="session")
def profile(workload: StudyWorkload) -> Profile:
    """What one honest stack shows on a few inputs."""
    nodes: dict[str, Calibrated] = {}
    kinds: dict[str, Calibrated] = {}
    for seed in range(6):
        x = np.random.default_rng(seed + 10).standard_normal((4, 48)).astype("<f4")
        values = run_values(workload.with_bindings({"inputs.x": Tensor.of(x)}))
        for node in workload.graph.nodes:
            exact = bound(operator(node.operator), {**operands_of(node, values), **node.attributes})
            for ref, spec in float_results(node):
                found = exact[node.outputs.index(ref)]
                assert found is not None
                errors = errors_of(values[ref].values().astype(np.float64), found.value, found.radius, UNIT)
                errors = join((errors, rounding_errors(found.value, found.radius, UNIT)))
                for table, name in ((nodes, ref[1:]), (kinds, f"{node.operator} {spec.dtype}")):
                    table[name] = Calibrated.of(join((errors, table[name].errors())) if name in table else errors)
    root = graph_root(workload.graph)
    common = {"stacks": ("base",), "machines": ("here",), "inputs": 6, "safety": 3.0}
    return Profile(graphs=(root,), nodes={root: nodes}, operators=kinds, **common)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def near_tie(workload: StudyWorkload) -> StudyWorkload:
    """The same model with an input whose two best answers are as close as bisection between two inputs gets them."""
    from tests.support.attacks.inference.workload import answer

    low, high = (workload.bindings["inputs.x"].array().copy() for _ in range(2))
    random = np.random.default_rng(2)

    def bound_to(x: object) -> StudyWorkload:
        return workload.with_bindings({"inputs.x": Tensor.of(np.asarray(x, "<f4"))})

    def answer_of(x: object) -> int:
        return answer(workload, run_values(bound_to(x)))

    first = answer_of(low)
    while answer_of(high) == first:
        high[-1] = random.standard_normal(48)
    for _ in range(14):
        middle = ((low.astype(np.float64) + high) / 2).astype("<f4")
        low, high = (middle, high) if answer_of(middle) == first else (low, middle)
    return replace(bound_to(low), name="near tie")
