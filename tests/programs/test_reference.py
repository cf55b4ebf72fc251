"""The reference engine runs graphs in float64, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.execution import Reference, execute
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role

F32 = TensorSpec("F32", (3,))


def squared_difference() -> Graph:
    """(x − 0.1 y)² and where x exceeds y."""
    nodes = (
        Node(1, "aten.sub.Tensor", {"self": "inputs.x", "other": "inputs.y"}, {"alpha": 0.1}, (F32,)),
        Node(2, "aten.square.default", {"self": "n1"}, {}, (F32,)),
        Node(3, "aten.gt.Tensor", {"self": "inputs.x", "other": "inputs.y"}, {}, (TensorSpec("BOOL", (3,)),)),
    )
    inputs = tuple(Input(f"inputs.{name}", Role.INPUT, F32) for name in "xy")
    return Graph(
        "aten", GraphForm.LOGICAL, inputs, (), nodes, (Output("outputs.z", "n2"), Output("outputs.larger", "n3"))
    )


def test_floats_come_out_as_float64_and_others_as_they_are() -> None:
    x, y = np.array([1, 2, 3], "<f4"), np.array([0.3, 5, -7], "<f4")
    found = execute(squared_difference(), {"inputs.x": Tensor.of(x), "inputs.y": Tensor.of(y)}, Reference())
    assert found["outputs.z"].dtype == "F64"
    exact = (x.astype(np.float64) - np.float64(np.float32(0.1)) * y.astype(np.float64)) ** 2
    np.testing.assert_allclose(found["outputs.z"].values(), exact, 1e-15)
    assert found["outputs.larger"].dtype == "BOOL"
    assert found["outputs.larger"].values().tolist() == [True, False, True]


def test_16_bit_floats_are_loaded_exactly() -> None:
    engine = Reference()
    tensor = Tensor.of(np.array([0x3F81, 0x0001], "<u2"), "BF16")
    np.testing.assert_array_equal(engine.unload(engine.load(tensor), "BF16").values(), [1.0078125, 2.0**-133])


def test_an_operator_that_is_not_on_the_allow_list_is_refused() -> None:
    node = Node(1, "custom.launch", {"self": "x"}, {}, (F32,))
    with pytest.raises(MalformedError, match=r"custom\.launch"):
        Reference().prepare(node)
    assert Reference().prepare(Node(1, "aten.neg.default", {"self": "x"}, {}, (F32,)))


def test_an_operator_may_have_several_results() -> None:
    engine = Reference()
    node = Node(1, "aten.max.dim", {"self": "x"}, {"dim": 0, "keepdim": False}, (TensorSpec("F32"), TensorSpec("I64")))
    values, indices = engine.prepare(node)({"self": engine.load(Tensor.of(np.array([1, 5, 2], "<f4")))})
    assert (float(values.array), int(indices.array)) == (5.0, 1)
