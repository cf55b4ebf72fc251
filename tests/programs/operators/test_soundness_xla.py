"""XLA and IREE stay within the deterministic bounds: StableHLO as they compile it, ATen by definition."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.programs.execution import Engine
from tallystick.programs.operators.precision import PLAIN, STEPWISE, Precision, outside
from tests.programs.operators.examples import Call, collected
from tests.programs.operators.honest import PROFILES, as_dtype, leaving, redrawn

EXAMPLES = collected("EXAMPLES")
STABLEHLO = sorted(name for name in EXAMPLES if name.startswith("stablehlo."))
ATEN = sorted(name for name in EXAMPLES if name.startswith("aten."))


def runs(name: str, draws: int, examples: int) -> Iterator[tuple[Call, Precision]]:
    rng = np.random.default_rng([len(name), draws])
    for example in EXAMPLES[name][:examples]:
        yield as_dtype(example, "F32"), PLAIN
        for dtype in [*["F32"] * draws, "BF16", "F16"]:
            profiles = tuple(rng.choice(list(PROFILES), 3))
            drawn = redrawn(example, profiles, dtype, int(rng.integers(1 << 30)))
            yield with_neutral_values(drawn, as_dtype(example, dtype)), stated(drawn, dtype)


def stated(call: Call, dtype: str) -> Precision:
    """A product of F16 for a BF16 result is taken in BF16."""
    if dtype == "F16" and call.arguments.get("dtype") == "BF16":
        return Precision(products="BF16", accumulation="BF16", widens=False)
    return PLAIN if dtype == "F32" else STEPWISE


def with_neutral_values(call: Call, example: Call) -> Call:
    """Initial values stay: how often another one than the neutral one is used, StableHLO leaves open."""
    kept = {name: value for name, value in example.arguments.items() if name.startswith("init")}
    return replace(call, arguments={**call.arguments, **kept})


def check(name: str, engine: Engine, draws: int = 1, examples: int = 1) -> None:
    ran = [_check(call, precision, engine) for call, precision in runs(name, draws, examples)]
    assert any(ran) or name == "aten._assert_tensor_metadata.default"


def _check(call: Call, precision: Precision, engine: Engine) -> bool:
    try:
        found = leaving(call, engine, precision=precision)
        if found is not None and outside(engine.name, call.operator, found.bound.dtype) is not None:
            return True
    except (UnavailableError, MalformedError):
        return False
    assert found is None, str(found)
    return True


@pytest.fixture(scope="module")
def xla() -> Any:
    pytest.importorskip("jax")
    return pytest.importorskip("tallystick.engines.jax.engine").JaxEngine()


@pytest.fixture(scope="module")
def iree() -> Any:
    pytest.importorskip("iree.compiler")
    return pytest.importorskip("tallystick.engines.iree").IreeEngine()


@pytest.mark.parametrize("name", STABLEHLO[::4])
def test_xla_stays_within_the_bound(name: str, xla: Engine) -> None:
    check(name, xla)


@pytest.mark.parametrize("name", ATEN[::30])
def test_definitions_on_xla_stay_within_the_bound(name: str, xla: Engine) -> None:
    check(name, xla)


@pytest.mark.parametrize("name", ["stablehlo.dot_general", "stablehlo.exponential"])
def test_iree_stays_within_the_bound(name: str, iree: Engine) -> None:
    check(name, iree)


@pytest.mark.slow
@pytest.mark.parametrize("name", STABLEHLO)
def test_xla_stays_within_the_bound_on_more_operands(name: str, xla: Engine) -> None:
    check(name, xla, 12, 9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATEN)
def test_every_definition_on_xla_stays_within_the_bound(name: str, xla: Engine) -> None:
    check(name, xla, 4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(STABLEHLO) - {"stablehlo.sort"}))
def test_iree_stays_within_the_bound_on_more_operators(name: str, iree: Engine) -> None:
    check(name, iree, 2, 1)


def test_another_result_is_outside_the_bound(xla: Engine) -> None:
    """The twin of the tests above."""
    call = as_dtype(EXAMPLES["stablehlo.dot_general"][0], "F32")
    engine = type(xla)()
    load = engine.load
    engine.load = lambda tensor: load(tensor) * np.float32(1 + 2.0**-12)  # type: ignore[method-assign]
    assert leaving(call, xla) is None
    assert leaving(call, engine) is not None
