"""The table of engines outside the bounds: what it names is outside, and what it does not name is not excused."""

from typing import Any

import numpy as np
import pytest

from tallystick.programs.execution import Engine
from tallystick.programs.operators.definition import OPERATORS
from tallystick.programs.operators.precision import OUTSIDE, PLAIN, STEPWISE, outside
from tests.programs.operators.examples import Call, call, collected
from tests.programs.operators.honest import as_dtype, shares

RNG = np.random.default_rng(0)
ANGLES = np.concatenate([size * RNG.standard_normal(9000) for size in (1e-4, 1, 1e4)]).astype(np.float32)
A, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((32, 64), (64, 32)))
NUMBERS = RNG.standard_normal(2000).astype(np.float32)


def product(dtype: str) -> Call:
    """A plain product of matrices in StableHLO, with a result of `dtype`."""
    plain = next(each for each in collected("EXAMPLES")["stablehlo.dot_general"] if each.arguments["lhs"].ndim == 2)
    return as_dtype(Call(plain.operator, {**plain.arguments, "lhs": A, "rhs": B, "dtype": dtype}), dtype)


def share(made: Call, engine: Engine) -> float:
    """The largest share of its bound that an element uses, as judges see it."""
    return max(float(used.max(initial=0.0)) for _, _, used in shares(made, engine, precision=STEPWISE))


@pytest.fixture(scope="module")
def iree() -> Any:
    pytest.importorskip("iree.compiler")
    return pytest.importorskip("tallystick.engines.iree").IreeEngine()


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("name", ["stablehlo.sine", "stablehlo.cosine"])
def test_sine_and_cosine_of_iree_are_outside_and_in_the_table(name: str, dtype: str, iree: Engine) -> None:
    assert share(as_dtype(Call(name, {"operand": ANGLES}), dtype), iree) > 10
    assert outside("iree", name, dtype) is not None


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_16_bit_products_of_iree_are_outside_and_in_the_table(dtype: str, iree: Engine) -> None:
    assert share(product(dtype), iree) > 10
    assert outside("iree", "stablehlo.dot_general", dtype) is not None


def test_small_numbers_of_f16_are_lost_by_iree_and_in_the_table(iree: Engine) -> None:
    assert share(call("aten._to_copy.default", self=np.float32(6e-5) * np.ones(4, np.float32), dtype="F16"), iree) > 100
    assert outside("iree", "aten._to_copy.default", "F16") is not None


@pytest.mark.parametrize("name", ["aten.exp.default", "aten.tanh.default", "aten.mm.default"])
def test_what_iree_computes_within_its_bounds_is_not_excused(name: str, iree: Engine) -> None:
    made = Call(name, {"self": A, "mat2": B} if name == "aten.mm.default" else {"self": NUMBERS})
    for dtype in ("F32", "BF16"):
        assert share(as_dtype(made, dtype), iree) <= 1
        assert outside("iree", name, dtype) is None
    assert max(float(used.max()) for _, _, used in shares(product("F32"), iree, precision=PLAIN)) <= 1


def images() -> Call:
    """A convolution that NNPACK takes over where oneDNN is switched off: 16 examples or more."""
    image, weight = (RNG.standard_normal(shape).astype(np.float32) for shape in ((16, 3, 24, 24), (16, 3, 3, 3)))
    numbers = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    return call("aten.convolution.default", input=image, weight=weight, bias=None, transposed=False,
                output_padding=(0, 0), **numbers)  # fmt: skip


def test_winograd_convolutions_of_pytorch_without_onednn_are_outside_and_in_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    engine = pytest.importorskip("tallystick.engines.torch.engine").TorchEngine()
    assert engine.name == "torch"
    assert share(images(), engine) <= 1
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    if engine.name != "torch-nnpack":
        pytest.skip("this PyTorch has no NNPACK")
    assert share(images(), engine) > 2
    assert outside(engine.name, "aten.convolution.default", "F32") is not None
    with torch.backends.nnpack.flags(enabled=False):
        assert engine.name == "torch"
        assert share(images(), engine) <= 1


def test_only_the_engines_of_the_table_are_excused() -> None:
    assert outside("torch", "stablehlo.sine", "F32") is None
    assert outside(None, "stablehlo.sine", "F32") is None
    assert all(line.factor > 1 and line.why and line.operators <= OPERATORS.keys() for line in OUTSIDE)
