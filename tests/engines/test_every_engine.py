"""One captured graph on every engine: close to what the framework computed, and accepted operator by operator."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

from research.architectures.distances import distance
from research.architectures.engines import engine_of
from research.architectures.jax_models import ALONE as JAX
from research.architectures.judging import judge_all
from research.architectures.subjects import FORWARD, STEP, subject
from tallystick.core.tensors import Tensor
from tallystick.programs.execution import execute
from tallystick.tally.calibration.operator_runs import all_values

pytestmark = pytest.mark.filterwarnings("ignore")
TRIED = [
    ("torch", "UNet2DModel", FORWARD),
    ("torch", JAX, FORWARD),
    ("jax", "CNN", STEP),
    ("jax", "GPT-2, sdpa", FORWARD),
    ("iree", "CNN", FORWARD),
]
LIBRARIES = {"jax": "jax", "iree": "iree.compiler", "torch": "torch"}


@pytest.mark.parametrize(("engine", "architecture", "part"), TRIED)
def test_a_captured_graph_runs_and_its_operators_are_accepted(engine: str, architecture: str, part: str) -> None:
    for library in {LIBRARIES[engine], "diffusers" if "UNet" in architecture else "jax"}:
        pytest.importorskip(library)
    tried = subject(architecture, part)
    values = all_values(tried.graph, tried.bindings, engine_of(engine, tried.graph))
    outputs = {output.name: values[output.value] for output in tried.graph.outputs}
    assert distance(outputs, tried.native, ("0.bias",)).observed < 1e-5
    judged = judge_all(tried.graph, values)
    assert (judged.rejected, judged.unbounded) == ((), ())


def test_the_reference_needs_no_framework_and_notices_another_weight() -> None:
    tried, engine = subject("CNN", FORWARD), engine_of("reference")
    exact = execute(tried.graph, tried.bindings, engine)
    assert distance(exact, tried.native).worst < 1e-6
    name = next(name for name in tried.bindings if name.startswith("weights.") and name.endswith("weight"))
    changed = Tensor.of((tried.bindings[name].values() * np.float32(1.01)).astype(np.float32))
    assert distance(execute(tried.graph, {**tried.bindings, name: changed}, engine), tried.native).worst > 1e-4
