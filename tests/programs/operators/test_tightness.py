import pytest

from tallystick.engines.torch.engine import TorchEngine
from tests.programs.operators.examples import collected
from tests.programs.operators.measured import MODELS, mean_ratio, tightness

EXAMPLES = collected("EXAMPLES")
COMMON = [
    "aten.mm.default",
    "aten.addmm.default",
    "aten.linear.default",
    "aten.convolution.default",
    "aten._softmax.default",
    "aten._log_softmax.default",
    "aten.native_layer_norm.default",
    "aten.mean.dim",
    "aten.sum.dim_IntList",
    "aten.cumsum.default",
    "aten.gelu.default",
    "aten.silu.default",
    "aten.mul.Tensor",
    "aten.add.Tensor",
    "aten.exp.default",
    "aten.tanh.default",
    "aten.rsqrt.default",
]


@pytest.mark.filterwarnings("ignore")
def test_the_tightest_bound_of_common_operators_is_eight_times_the_largest_error_in_the_mean() -> None:
    found = [tightness(EXAMPLES[name], TorchEngine(), draws=6) for name in COMMON]
    assert mean_ratio([each for each in found if each is not None]) <= 8


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["aten.mm.default", "aten.linear.default", "aten.sum.dim_IntList"])
def test_assumptions_make_bounds_of_long_sums_tighter(name: str) -> None:
    found = tightness(EXAMPLES[name], TorchEngine(), draws=2)
    assert found is not None
    deterministic, probabilistic, variance = (found.ratios[model.name] for model in MODELS)
    assert deterministic >= probabilistic >= 1
    assert deterministic >= variance >= 1
