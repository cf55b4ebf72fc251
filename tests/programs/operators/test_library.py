"""The table of library functions: no engine's function is farther from exact than its figure."""

import numpy as np
import numpy.typing as npt
import pytest

from tallystick.engines.torch.engine import TorchEngine
from tallystick.programs.execution import Engine
from tallystick.programs.operators.precision import ANY, FUSED_EXPONENTIAL, VECTOR
from tests.programs.operators.examples import Call, call
from tests.programs.operators.honest import bounds_of, results_of

FUNCTIONS = {
    "exp": "exponential",
    "expm1": "exponential_minus_one",
    "log": "log",
    "log1p": "log_plus_one",
    "sin": "sine",
    "cos": "cosine",
    "tanh": "tanh",
    "erf": "erf",
    "sigmoid": "logistic",
    "rsqrt": "rsqrt",
    "sqrt": "sqrt",
}
POSITIVE = {"log", "log1p", "rsqrt", "sqrt"}
POINTS = 20_000


def points(function: str) -> npt.NDArray[np.float32]:
    """Of all magnitudes at which the result is a normal number, and many around 1."""
    rng = np.random.default_rng(len(function))
    around, sizes = 20 * rng.standard_normal(POINTS // 2), 10.0 ** rng.uniform(-30, 4, POINTS // 2)
    x = np.concatenate([around, sizes * rng.choice([-1.0, 1.0], sizes.size)])
    return (np.abs(x) if function in POSITIVE else np.clip(x, -80, 80)).astype(np.float32)


def ulps(call: Call, engine: Engine) -> float:
    """The largest error, in units in the last place of the exact result."""
    [bound] = bounds_of(call)
    [computed] = results_of(call, engine, (bound,))
    assert bound is not None
    assert computed is not None
    exponents = np.maximum(np.frexp(np.abs(bound.value))[1], -125)
    is_normal = np.abs(bound.value) >= 2.0**-126
    error = np.abs(computed.values().astype(np.float64) - bound.value) / np.ldexp(1.0, exponents - 24)
    return float(error[is_normal].max())


def of_xla(function: str) -> Call:
    return Call(f"stablehlo.{FUNCTIONS[function]}", {"operand": points(function)})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_pytorch_are_as_close_as_the_tables_say(function: str) -> None:
    found = ulps(Call(f"aten.{function}.default", {"self": points(function)}), TorchEngine())
    assert 0.4 < found <= min(VECTOR.ulps[function], ANY.ulps[function])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_xla_are_as_close_as_the_table_says(function: str) -> None:
    pytest.importorskip("jax")
    engine = pytest.importorskip("tallystick.engines.jax.engine").JaxEngine()
    assert 0.4 < ulps(of_xla(function), engine) <= ANY.ulps[function]


def iree_error(function: str) -> float:
    pytest.importorskip("iree.compiler")
    return ulps(of_xla(function), pytest.importorskip("tallystick.engines.iree").IreeEngine())


@pytest.mark.slow
@pytest.mark.parametrize("function", sorted(FUNCTIONS.keys() - {"sin", "cos"}))
def test_functions_of_iree_are_as_close_as_the_table_says(function: str) -> None:
    assert 0.4 < iree_error(function) <= ANY.ulps[function]


@pytest.mark.slow
@pytest.mark.parametrize("function", ["sin", "cos"])
def test_sine_and_cosine_of_iree_are_not(function: str) -> None:
    """As docs/bounds.md says: they are outside the bound."""
    assert iree_error(function) > ANY.ulps[function]


def test_the_exponential_of_fused_attention_is_as_close_as_its_definition_says() -> None:
    """Weights of keys with scores 0 and x are as 1 to eˣ; a quotient of two adds two roundings."""
    rng, side = np.random.default_rng(0), 32
    scores = np.clip(-(10 ** rng.uniform(-6, 1.9, (500, side))), -70, 0).astype(np.float32)
    scores[:, 0] = 0
    query, key = np.zeros((500, 1, 1, side), np.float32), np.zeros((500, 1, side, side), np.float32)
    query[..., 0], key[:, 0, :, 0] = 1, scores
    given = {"query": query, "key": key, "value": np.broadcast_to(np.eye(side, dtype=np.float32), key.shape).copy()}
    fused = call("aten._scaled_dot_product_flash_attention_for_cpu.default", **given, scale=1.0)
    computed = results_of(fused, TorchEngine(), bounds_of(fused))[0]
    assert computed is not None
    weights = computed.values()[:, 0, 0].astype(np.float64)
    relative = np.abs(weights / weights[:, :1] / np.exp(scores.astype(np.float64)) - 1) * 2.0**24
    assert 1 < relative.max() <= FUSED_EXPONENTIAL["F32"]


@pytest.mark.parametrize("terms", [1, 3])
def test_powers_of_pytorch_and_xla_are_as_close_as_the_table_says(terms: int) -> None:
    pytest.importorskip("jax")
    rng = np.random.default_rng(terms)
    x = rng.uniform(0.05, 20, POINTS).astype(np.float32)
    y = (terms * rng.standard_normal(POINTS)).astype(np.float32)
    engine = pytest.importorskip("tallystick.engines.jax.engine").JaxEngine()
    assert ulps(Call("aten.pow.Tensor_Tensor", {"self": x, "exponent": y}), TorchEngine()) <= ANY.ulps["pow"]
    assert ulps(Call("stablehlo.power", {"lhs": x, "rhs": y}), engine) <= ANY.ulps["pow"]
