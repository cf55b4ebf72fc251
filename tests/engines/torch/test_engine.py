"""The engine computes what PyTorch computes, one node at a time or compiled, and lets nothing unlisted through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.torch.capture.model import CapturedModel, capture
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.kernels import in_place_nodes
from tallystick.programs.execution import execute
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role

X = TensorSpec("F32", (2, 3))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.inner(x))
        halves = y.split(2, dim=1)
        return torch.cat([halves[1] * 2, halves[0] + torch.arange(2)], dim=1).softmax(-1)


def captured_network() -> tuple[Network, CapturedModel, np.ndarray]:
    model = Network().eval()
    x = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    return model, capture(model, torch.from_numpy(x)), x


def graph_of(*nodes: Node, outputs: tuple[Output, ...], inputs: tuple[Input, ...] | None = None) -> Graph:
    return Graph("aten", GraphForm.LOGICAL, inputs or (Input("inputs.x", Role.INPUT, X),), (), nodes, outputs)


def scaled(number: int, ref: str, factor: float, spec: TensorSpec = X) -> Node:
    return Node(number, "aten.mul.Scalar", {"self": ref}, {"other": factor}, (spec,))


def transposed(number: int, ref: str) -> Node:
    return Node(number, "aten.t.default", {"self": ref}, {}, (TensorSpec("F32", (3, 2)),))


def test_node_by_node_and_compiled_have_the_same_bits_as_eager() -> None:
    model, captured, x = captured_network()
    engine, bindings = TorchEngine(), {**captured.bindings, "inputs.x": Tensor.of(x)}
    single = execute(captured.graph, bindings, engine)["outputs.0"]
    together = engine.compile(captured.graph)({name: engine.load(tensor) for name, tensor in bindings.items()})
    expected = model(torch.from_numpy(x)).detach().numpy()
    assert np.array_equal(single.array(), expected)
    assert np.array_equal(together["outputs.0"].numpy(), expected)


def test_sums_of_indexed_rows_are_added_in_order_on_any_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, places = torch.randn(600, 96, generator=generator), torch.randint(4, (600,), generator=generator)
    specs = {"inputs.x": TensorSpec("F32", (4, 96)), "inputs.i": TensorSpec("I64", (600,))}
    specs["inputs.y"] = TensorSpec("F32", (600, 96))
    operands = {"self": "inputs.x", "indices": ("inputs.i",), "values": "inputs.y"}
    node = Node(0, "aten.index_put.default", operands, {"accumulate": True}, (specs["inputs.x"],))
    inputs = tuple(Input(name, Role.INPUT, spec) for name, spec in sorted(specs.items()))
    program = TorchEngine().compile(graph_of(node, outputs=(Output("outputs.0", "n0"),), inputs=inputs))
    bound = {"inputs.x": torch.zeros(4, 96), "inputs.i": places, "inputs.y": rows}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = program(bound)["outputs.0"]
        torch.set_num_threads(4)
        assert all(torch.equal(program(bound)["outputs.0"], expected) for _ in range(5))
    finally:
        torch.set_num_threads(threads)
    assert not torch.are_deterministic_algorithms_enabled()


def test_every_dtype_goes_in_and_out_unchanged() -> None:
    engine = TorchEngine()
    for dtype in ("BOOL", "U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64"):
        tensor = Tensor(dtype, (2,), bytes([0, 1] * Tensor(dtype, (0,), b"").array().itemsize))
        back = engine.unload(engine.load(tensor), dtype)
        assert (back.dtype, back.shape, bytes(back.data)) == (dtype, (2,), bytes(tensor.data))


@pytest.mark.parametrize("name", ["aten.from_file.default", "aten.nonsense.default", "os.system", "prims.add.default"])
def test_an_operator_that_is_not_listed_is_never_looked_up(name: str) -> None:
    with pytest.raises(MalformedError, match="allow-list"):
        TorchEngine().prepare(Node(0, name, {}, {}, (X,)))


def test_a_kernel_that_refuses_its_operands_is_named() -> None:
    wrong = Node(0, "aten.mm.default", {"self": "inputs.x", "mat2": "inputs.x"}, {}, (X,))
    graph, engine = graph_of(wrong, outputs=(Output("y", "n0"),)), TorchEngine()
    given = {"inputs.x": torch.ones(2, 3)}
    with pytest.raises(UnavailableError, match=r"aten\.mm\.default \(node 0\)"):
        engine.compile(graph)(given)
    with pytest.raises(UnavailableError, match=r"aten\.mm\.default \(node 0\)"):
        engine.prepare(wrong)({"self": given["inputs.x"], "mat2": given["inputs.x"]})


def test_a_missing_value_is_named() -> None:
    graph = graph_of(scaled(0, "inputs.x", 2.0), outputs=(Output("y", "n0"),))
    with pytest.raises(MalformedError, match=r"inputs\.x is not bound"):
        TorchEngine().compile(graph)({})
    assert TorchEngine().compile(graph)({"inputs.x": torch.ones(2, 3)})["y"].tolist() == [[2.0] * 3] * 2


# ---- writing over operands


def test_a_value_that_nobody_reads_any_more_is_written_over() -> None:
    graph = graph_of(scaled(0, "inputs.x", 2.0), scaled(1, "n0", 3.0), outputs=(Output("y", "n1"),))
    assert in_place_nodes(graph) == {1}
    assert in_place_nodes(graph, {"inputs.x"}) == {0, 1}


OUTPUT: tuple[Output, ...] = (Output("y", "n2"),)


@pytest.mark.parametrize(
    ("nodes", "outputs", "why"),
    [
        ((scaled(0, "inputs.x", 2.0), scaled(1, "n0", 3.0), scaled(2, "n0", 4.0)), OUTPUT, "read later"),
        ((scaled(0, "inputs.x", 2.0), scaled(1, "n0", 3.0)), (Output("x", "n0"), Output("y", "n1")), "an output"),
        ((scaled(0, "inputs.x", 2.0), transposed(1, "n0"), scaled(2, "n0", 3.0)), (Output("t", "n1"), *OUTPUT), "seen"),
        ((transposed(0, "inputs.x"), scaled(1, "n0", 3.0, TensorSpec("F32", (3, 2)))), (Output("y", "n1"),), "a view"),
    ],
)
def test_memory_that_something_else_sees_is_not_written_over(
    nodes: tuple[Node, ...], outputs: tuple[Output, ...], why: str
) -> None:
    graph = graph_of(*nodes, outputs=outputs)
    assert nodes[-1].number not in in_place_nodes(graph, {"inputs.x"}) or why == "read later"
    x = torch.arange(6.0).reshape(2, 3)
    plain = TorchEngine().compile(graph)({"inputs.x": x.clone()})
    engine: Any = TorchEngine()
    single = execute(graph, {"inputs.x": Tensor.of(x.numpy())}, engine)
    assert all(np.array_equal(single[name].array(), value.numpy()) for name, value in plain.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_runs_on_a_cuda_device() -> None:
    model, captured, x = captured_network()
    bindings = {**captured.bindings, "inputs.x": Tensor.of(x)}
    found = execute(captured.graph, bindings, TorchEngine("cuda"))["outputs.0"]
    assert np.allclose(found.array(), model(torch.from_numpy(x)).detach().numpy(), atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnavailableError, match="CUDA"):
        TorchEngine("cuda")
