"""No honest run leaves the deterministic bound of its stated precision."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.engines.torch.engine import TorchEngine
from tallystick.programs.operators.balls.bound import excess
from tallystick.programs.operators.definition import OPERATORS
from tallystick.programs.operators.precision import PLAIN, STEPWISE, Precision
from tests.programs.operators.examples import Call, collected
from tests.programs.operators.honest import FLOATS, PROFILES, as_dtype, bounds_of, leaving, redrawn
from tests.programs.operators.real_layers import real_layers

EXAMPLES = {name: calls for name, calls in collected("EXAMPLES").items() if name.startswith("aten.")}
ONE_ROUNDING = ("aten.mm.", "aten.bmm.", "aten.linear.", "aten.sum.", "aten.relu.", "aten.embedding.", "aten.exp.")
"""Kernels that are known to widen 16-bit floats and to round once."""
NOT_RUN = {"aten._assert_tensor_metadata.default", "aten._fused_rms_norm_backward.default"}
"""Without a result, and without a kernel for CPUs."""


def stated(name: str, dtype: str) -> Precision:
    if dtype == "F32" or name.startswith(ONE_ROUNDING):
        return PLAIN
    return STEPWISE


def runs(name: str, draws: int, seed: int, dtypes: tuple[str, ...] = FLOATS) -> Iterator[tuple[Call, Precision]]:
    rng = np.random.default_rng([seed, len(name)])
    for example in EXAMPLES[name]:
        yield as_dtype(example, "F32"), PLAIN
        for _ in range(draws):
            profiles = tuple(rng.choice(list(PROFILES), 3))
            dtype = str(rng.choice(dtypes))
            yield redrawn(example, profiles, dtype, int(rng.integers(1 << 30))), stated(name, dtype)


def check(call: Call, precision: Precision) -> bool:
    """Whether it ran; raises where it left its bound."""
    try:
        found = leaving(call, TorchEngine(), precision=precision)
    except (UnavailableError, MalformedError):
        return False
    assert found is None, str(found)
    return True


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.filterwarnings("ignore")
def test_pytorch_stays_within_the_bound(name: str) -> None:
    ran = [check(call, precision) for call, precision in runs(name, 4, 0)]
    assert any(ran) or name in NOT_RUN


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(EXAMPLES)),
    profiles=st.lists(st.sampled_from(sorted(PROFILES)), min_size=1, max_size=3),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**31),
)
@pytest.mark.filterwarnings("ignore")
def test_pytorch_stays_within_the_bound_on_drawn_operands(
    name: str, profiles: list[str], dtype: str, seed: int
) -> None:
    for example in EXAMPLES[name][:2]:
        check(redrawn(example, tuple(profiles), dtype, seed), stated(name, dtype))


SIDES = st.integers(1, 40)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=SIDES,
    inner=st.integers(1, 600),
    columns=SIDES,
    profile=st.sampled_from(sorted(PROFILES)),
    dtype=st.sampled_from(FLOATS),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**31),
)
@pytest.mark.filterwarnings("ignore")
def test_sums_of_drawn_shapes_stay_within_the_bound(
    rows: int, inner: int, columns: int, profile: str, dtype: str, threads: int, seed: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for call in shaped(rows, inner, columns):
            check(redrawn(call, (profile,), dtype, seed), stated(call.operator, dtype))
    finally:
        torch.set_num_threads(before)


def shaped(rows: int, inner: int, columns: int) -> Iterator[Call]:
    x, y = np.ones((rows, inner), np.float32) - 2, np.ones((inner, columns), np.float32) - 2
    yield Call("aten.mm.default", {"self": x, "mat2": y})
    yield Call("aten.addmm.default", {"self": y[0], "mat1": x, "mat2": y, "beta": 1, "alpha": 1})
    yield Call("aten.sum.dim_IntList", {"self": x, "dim": (1,), "keepdim": False, "dtype": None})
    yield Call("aten.mean.dim", {"self": x, "dim": (0,), "keepdim": True, "dtype": None})
    yield Call("aten.cumsum.default", {"self": x, "dim": 1, "dtype": None})
    yield Call("aten._softmax.default", {"self": x, "dim": 1, "half_to_float": False})
    yield Call("aten._log_softmax.default", {"self": x, "dim": 0, "half_to_float": False})
    affine = {"weight": x[0], "bias": x[0]}
    yield Call("aten.native_layer_norm.default", {"input": x, "normalized_shape": (inner,), **affine, "eps": 1e-5})


@pytest.mark.parametrize("name", ["batch_norm_legit_functional", "convolution", "vector_norm", "layer_norm_backward"])
def test_layers_of_real_shapes_stay_within_the_bound(name: str) -> None:
    """What the search (research/bound_search.py) had found outside: dead channels, 16-bit sums, roots of large sums."""
    layers = [layer for layer in real_layers() if name in layer.operator]
    ran = [check(as_dtype(each, dtype), stated(each.operator, dtype)) for each in layers for dtype in FLOATS]
    assert all(ran[:3])


def test_another_momentum_is_outside_the_bound() -> None:
    """The twin: 0.998 in place of 0.997, of dead channels."""
    layers = [each for each in real_layers() if each.arguments.get("momentum") == 0.997]
    fading = next(each for each in layers if not each.arguments["input"].any())
    honest = bounds_of(fading)
    other = bounds_of(Call(fading.operator, {**fading.arguments, "momentum": 0.998}))
    for right, wrong in zip(honest[3:], other[3:], strict=True):
        assert right is not None
        assert wrong is not None
        assert excess(wrong.value, right.value, right.radius).min() > 100


def test_another_product_is_outside_the_bound() -> None:
    """The twin of the tests above: a dishonest result is seen."""
    call = as_dtype(EXAMPLES["aten.mm.default"][0], "F32")

    class Nudged(TorchEngine):
        def load(self, tensor):  # type: ignore[no-untyped-def]
            return super().load(tensor) * (1 + 2.0**-16)

    assert leaving(call, TorchEngine()) is None
    assert leaving(call, Nudged()) is not None


def test_half_precision_is_outside_the_bound_of_single_precision() -> None:
    call = as_dtype(EXAMPLES["aten.mm.default"][0], "F32")

    class Shorter(TorchEngine):
        def load(self, tensor):  # type: ignore[no-untyped-def]
            return super().load(tensor).bfloat16().float()

    assert leaving(call, Shorter()) is not None


def test_a_running_sum_in_storage_type_is_within_the_bound_unless_the_device_widens(one_thread: None) -> None:
    """PyTorch's kernel on CPUs adds up the gradients of weight and bias of layer normalization in 16 bits."""
    rng = np.random.default_rng(0)
    x = rng.random((200, 4)).astype(np.float32)
    statistics = {"mean": x[:, :1] * 0, "rstd": x[:, :1] * 0 + 1, "weight": x[0], "bias": x[0]}
    operands = {"grad_out": x, "input": x, "normalized_shape": (4,), **statistics}
    call = as_dtype(
        Call("aten.native_layer_norm_backward.default", {**operands, "output_mask": (False, False, True)}), "BF16"
    )
    assert leaving(call, TorchEngine(), precision=PLAIN) is not None
    assert leaving(call, TorchEngine(), precision=STEPWISE) is None
    assert all(np.isfinite(each.radius).all() for each in bounds_of(call, precision=STEPWISE) if each is not None)


LEVELS = [
    *({"ATEN_CPU_CAPABILITY": level} for level in ("avx2", "default")),
    {"MKL_CBWR": "COMPATIBLE"},
    *({"ONEDNN_MAX_CPU_ISA": level} for level in ("SSE41", "AVX", "AVX2", "AVX512_CORE")),
    {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
]
PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
from tests.programs.operators.test_soundness import EXAMPLES, check, runs
counts = [check(call, p) for name in EXAMPLES for call, p in runs(name, int(sys.argv[1]), 1)]
print(json.dumps(sum(counts)))
"""


def on_level(level: dict[str, str], draws: int) -> int:
    environment = {**os.environ, **level, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(draws)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(json.loads(done.stdout.splitlines()[-1]))


def test_other_instruction_sets_stay_within_the_bound() -> None:
    assert on_level(LEVELS[-1], 1) > len(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_every_instruction_set_stays_within_the_bound(level: dict[str, str]) -> None:
    assert on_level(level, 12) > 12 * len(EXAMPLES)


def test_every_aten_operator_has_examples() -> None:
    assert {name for name in OPERATORS if name.startswith("aten.")} <= EXAMPLES.keys()
