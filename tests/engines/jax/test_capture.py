"""Capture of JAX programs: the same graph everywhere, the same bits in XLA, and what is refused."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from tallystick.core.errors import UnavailableError, UsageError  # noqa: E402
from tallystick.core.tensors import Tensor  # noqa: E402
from tallystick.engines.jax import capture as lowering  # noqa: E402
from tallystick.engines.jax.capture import (  # noqa: E402
    CapturedFunction,
    capture,
    lower,
    to_tensor,
)
from tallystick.engines.jax.emission import graph_function, module_text  # noqa: E402
from tallystick.engines.jax.engine import JaxEngine  # noqa: E402
from tallystick.programs.admission import read_graph  # noqa: E402
from tallystick.programs.encoding import graph_bytes  # noqa: E402
from tallystick.programs.execution import Engine, Reference, execute  # noqa: E402
from tallystick.programs.graph import Role  # noqa: E402
from tests.engines.jax.programs import RESULTS, ROLES, forward, step_arguments, tokens, training_step, weights  # noqa: E402

TESTS = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def step() -> CapturedFunction:
    return capture(training_step, *step_arguments(), roles=ROLES, results=RESULTS)


@pytest.fixture(scope="module")
def native() -> dict[str, np.ndarray[Any, Any]]:
    """The results of `jax.jit`, by the names of the outputs."""
    state, momentum, loss = jax.jit(training_step)(*step_arguments())
    named = {f"weights.{name}": value for name, value in state.items()}
    named |= {f"optimizer.momentum.{name}": value for name, value in momentum.items()}
    return {name: np.asarray(value) for name, value in (named | {"loss": loss}).items()}


def test_a_step_is_named_by_its_pytrees(step: CapturedFunction) -> None:
    inputs = {each.name: each.role for each in step.graph.inputs}
    assert inputs["weights.qkv"] is Role.WEIGHT
    assert inputs["optimizer.momentum.qkv"] is Role.OPTIMIZER
    assert inputs["schedule.rate"] is Role.SCHEDULE
    assert inputs["inputs.ids"] is Role.INPUT
    assert {each.name for each in step.graph.outputs} == inputs.keys() - {"schedule.rate", "inputs.ids"} | {"loss"}


def test_a_captured_step_passes_the_door(step: CapturedFunction) -> None:
    data = graph_bytes(step.graph)
    assert graph_bytes(read_graph(data)) == data


def test_a_captured_step_compiles_back_to_the_bits_of_jit(
    step: CapturedFunction, native: dict[str, np.ndarray[Any, Any]]
) -> None:
    found = JaxEngine().run(step.graph, step.bindings)
    assert found.keys() == native.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.array(), native[name], err_msg=name)


@pytest.mark.parametrize("engine", [Reference, pytest.param(JaxEngine, marks=pytest.mark.slow)])
def test_a_step_run_node_by_node_agrees_with_jit(
    step: CapturedFunction, native: dict[str, np.ndarray[Any, Any]], engine: Callable[[], Engine]
) -> None:
    for name, tensor in execute(step.graph, step.bindings, engine()).items():
        np.testing.assert_allclose(tensor.array(), native[name], rtol=1e-4, atol=2e-6, err_msg=name)


def test_the_emitted_module_is_captured_as_the_same_graph(step: CapturedFunction) -> None:
    graph = step.graph
    text = module_text([graph_function(graph)])
    again = lower(text, graph.inputs, [each.name for each in graph.outputs]).graph
    assert graph_bytes(again) == graph_bytes(graph)


def test_bytes_are_the_same_in_another_process_and_folder(step: CapturedFunction, tmp_path: Path) -> None:
    source = TESTS / "tests" / "engines" / "jax" / "programs.py"
    (tmp_path / "elsewhere.py").write_text("\n\n" + source.read_text())
    code = (
        "import hashlib, elsewhere as e\n"
        "from tallystick.engines.jax.capture import capture\n"
        "from tallystick.programs.encoding import graph_bytes\n"
        "step = capture(e.training_step, *e.step_arguments(), roles=e.ROLES, results=e.RESULTS)\n"
        "print(hashlib.sha256(graph_bytes(step.graph)).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert run.stdout.strip() == hashlib.sha256(graph_bytes(step.graph)).hexdigest()


def test_a_forward_pass_agrees_with_jax() -> None:
    captured = capture(forward, weights(), tokens(), roles={0: "weights"})
    found = execute(captured.graph, captured.bindings, Reference())
    np.testing.assert_allclose(found["outputs.0"].array(), jax.jit(forward)(weights(), tokens()), rtol=1e-5, atol=1e-5)


def test_constants_with_several_values_are_kept_beside_the_graph() -> None:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    captured = capture(lambda x: x + table, jnp.ones((2, 3)))
    [constant] = captured.graph.constants
    np.testing.assert_array_equal(captured.constants[constant.name].array(), table)
    found = JaxEngine().run(captured.graph, captured.bindings)
    np.testing.assert_array_equal(found["outputs.0"].array(), 1 + table)


KEY = jnp.array([1, 2], jnp.uint32)
PATTERNS: dict[str, Callable[..., Any]] = {
    "argmax": lambda x, i: jnp.argmax(x, 1),
    "argmin": lambda x, i: jnp.argmin(x, 0),
    "sort": lambda x, i: jnp.sort(x, 1),
    "argsort": lambda x, i: jnp.argsort(x, 1),
    "top_k": lambda x, i: jax.lax.top_k(x, 2),
    "cumsum": lambda x, i: jnp.cumsum(x, 1),
    "erf": lambda x, i: jax.scipy.special.erf(x),
    "gather": lambda x, i: x[i],
    "scatter_add": lambda x, i: x.at[i].add(1.5),
    "scatter_set": lambda x, i: x.at[i[:1]].set(1.5),
    "dynamic_slice": lambda x, i: jax.lax.dynamic_slice_in_dim(x, i[0], 2, 0),
    "one_hot": lambda x, i: jax.nn.one_hot(i, 5, dtype=jnp.bfloat16) @ x.astype(jnp.bfloat16),
    "max_pool": lambda x, i: jax.grad(lambda y: pooled(y).sum())(x),
    "convolution": lambda x, i: jax.grad(lambda y: (convolved(y) ** 2).sum())(x),
    "checkpoint": lambda x, i: jax.grad(lambda y: jax.checkpoint(lambda z: jnp.sin(jnp.sin(z)))(y).sum())(x),
    "scan": lambda x, i: jax.lax.scan(lambda c, row: ((jnp.tanh(c * row)), c.sum()), x[0], x),
    "gradient of scan": lambda x, i: jax.grad(lambda y: jax.lax.scan(lambda c, r: (c * r, c.sum()), y[0], y)[1].sum())(
        x
    ),
    "nested loops": lambda x, i: jax.lax.fori_loop(
        0, 3, lambda j, c: jax.lax.fori_loop(0, 2, lambda k, d: d * 0.5 + j + k, c), x
    ),
    "random bits": lambda x, i: jax.random.bits(jnp.array([1, 2], jnp.uint32), (5,)),
    "dropout": lambda x, i: jnp.where(
        jax.random.bits(jax.random.fold_in(KEY, 7), x.shape) < jnp.uint32(1 << 31), 2 * x, 0
    ),
    "integers": lambda x, i: (i // 2, i % 2, jnp.clip(i, 1, 3), i.astype(jnp.uint32) >> 1),
}


def scanned(x: Any) -> Any:
    return jax.lax.scan(lambda carried, row: (carried * row, carried.sum()), x[0], x)[1]


def pooled(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID")


def convolved(x: Any) -> Any:
    kernel = jnp.arange(4.0).reshape(1, 1, 2, 2)
    return jax.lax.conv_general_dilated(x[None, None], kernel, (1, 2), "SAME")


@pytest.mark.parametrize("name", PATTERNS)
def test_what_jax_makes_of_common_functions_has_a_place(name: str) -> None:
    function = PATTERNS[name]
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 6)), jnp.float32)
    arguments = x, jnp.array([0, 3, 4], jnp.int32)
    captured = capture(function, *arguments)
    expected = [np.asarray(each, np.float64) for each in jax.tree.leaves(jax.jit(function)(*arguments))]
    for engine in (Reference(), JaxEngine()):
        found = execute(captured.graph, captured.bindings, engine)
        for output, wanted in zip(sorted(found), expected, strict=True):
            np.testing.assert_allclose(
                found[output].values(), wanted, rtol=1e-2 if name == "one_hot" else 1e-5, atol=1e-5
            )


def test_random_numbers_from_a_key_are_those_of_jax() -> None:
    function = lambda key: jax.random.randint(key, (7,), 0, 100)  # noqa: E731
    captured = capture(function, KEY)
    [found] = (
        JaxEngine().run(captured.graph, captured.bindings | {"inputs.key": Tensor.of(np.array([5, 6], "<u4"))}).values()
    )
    np.testing.assert_array_equal(found.array(), jax.jit(function)(jnp.array([5, 6], jnp.uint32)))


def test_a_loop_is_unrolled_up_to_a_number_of_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "UNROLLED_MAX", 60)

    def halved(turns: int) -> CapturedFunction:
        return capture(lambda x: jax.lax.fori_loop(0, turns, lambda i, c: c * 0.5, x), jnp.float32(1.5))

    assert len(halved(4).graph.nodes) == 8
    with pytest.raises(UnavailableError, match="more than 60 operators"):
        halved(40)


def factorial(x: Any) -> Any:
    return jax.lax.while_loop(lambda pair: pair[0] > 0, lambda pair: (pair[0] - 1, pair[0] * pair[1]), (x, x))[1]


def from_bits(x: Any, places: int, ones: int) -> Any:
    bits = (x * jnp.arange(3) * 7e8).astype(jnp.uint32) >> jnp.uint32(places)
    return x * jax.lax.bitcast_convert_type(jnp.uint32(ones) | bits, jnp.float32)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "loop": (factorial, "stablehlo.while"),
    "floats from bits": (lambda x: jax.lax.bitcast_convert_type(x, jnp.uint32), "bits of a number"),
    "few random bits": (lambda x: x * jax.random.uniform(KEY, dtype=jnp.bfloat16), "U16"),
    "bits that are no fraction": (lambda x: from_bits(x, 8, 0x3F800000), "only F32 from 32 of them"),
    "bits below another number": (lambda x: from_bits(x, 9, 0x40000000), "only F32 from 32 of them"),
    "branch": (lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x), "stablehlo.case"),
    "custom call": (lambda x: jnp.linalg.qr(jnp.eye(3) * x)[0], "stablehlo.custom_call"),
    "complex": (lambda x: jnp.abs(jax.lax.complex(x, x)), "complex"),
    "data-dependent": (lambda x: x if x > 0 else -x, "control flow"),
    "reducer": (lambda x: jax.lax.reduce(jnp.ones(3) * x, x, lambda a, b: a * b + a, (0,)), "stablehlo.reduce"),
    "fft": (lambda x: jnp.fft.rfft(jnp.ones(4) * x).real, "stablehlo.fft"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_place_is_refused_by_its_name(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(UnavailableError, match=reason):
        capture(function, jnp.float32(1.5))


ACCEPTED: dict[str, Callable[..., Any]] = {
    "floats from bits": lambda x: x * jax.random.uniform(KEY, (5,)),
    "bits that are no fraction": lambda x: from_bits(x, 10, 0x3F800000),
    "loop": lambda x: x * (x - 1) * (x - 2),
    "branch": lambda x: jnp.where(x > 0, jnp.sin(x), jnp.cos(x)),
    "custom call": lambda x: (jnp.eye(3) * x) @ jnp.eye(3),
    "reducer": lambda x: jax.lax.reduce(jnp.ones(3) * x, jnp.float32(1), lambda a, b: a * b, (0,)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_twin_without_it_is_captured(name: str) -> None:
    captured = capture(ACCEPTED[name], jnp.float32(1.5))
    [found] = JaxEngine().run(captured.graph, captured.bindings).values()
    np.testing.assert_array_equal(found.array(), jax.jit(ACCEPTED[name])(jnp.float32(1.5)))


def test_two_values_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"weights\.a"):
        capture(lambda x, y: x["a"] + y["a"], {"a": 1.0}, {"a": 2.0}, roles={0: "weights", 1: "weights"})
    capture(lambda x, y: x["a"] + y["a"], {"a": 1.0}, {"a": 2.0}, roles={0: "weights", 1: "buffers"})


def test_a_bfloat16_array_becomes_its_bits() -> None:
    captured = capture(lambda x: x + 1, jnp.ones(2, jnp.bfloat16))
    [given] = captured.arguments.values()
    assert given == Tensor("BF16", (2,), b"\x80\x3f\x80\x3f")
    assert to_tensor(jnp.ones(2, jnp.bfloat16), captured.graph.inputs[0].spec) == given
