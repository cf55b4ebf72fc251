import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor
from tallystick.verdicts.reach import direction_bound, norm_shortfall, reach_adamw, reach_sgd, second_moment_floor

BETAS = st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.0, 0.99), (0.5, 0.9), (0.95, 0.9), (0.9, 0.81)])


def adamw(weights, gradients, rate, betas, decay, eps=1e-8):
    first = second = np.zeros_like(weights)
    states = [weights]
    for step, gradient in enumerate(gradients, 1):
        first = (betas[0] * first + (1 - betas[0]) * gradient).astype(weights.dtype)
        second = (betas[1] * second + (1 - betas[1]) * gradient**2).astype(weights.dtype)
        direction = first / (1 - betas[0] ** step) / (np.sqrt(second / (1 - betas[1] ** step)) + eps)
        weights = (weights * (1 - rate * decay) - rate * direction).astype(weights.dtype)
        states.append(weights)
    return states


def steepest_gradients(betas, steps):
    """The gradients for which Cauchy-Schwarz is an equality: g_i in proportion to (β₁ / β₂)^(t - i)."""
    ages = np.arange(steps)[::-1]
    return ((betas[0] / betas[1]) ** ages)[:, None]


@settings(max_examples=60, deadline=None)
@given(BETAS, st.integers(1, 200))
def test_the_direction_bound_is_reached_by_the_steepest_gradients(betas, steps):
    if betas[0] == 0.0:
        return
    last, final = adamw(np.zeros(1), steepest_gradients(betas, steps), 1.0, betas, 0.0, eps=0.0)[-2:]
    assert abs(final - last)[0] == pytest.approx(direction_bound(betas, steps), rel=1e-6)


def test_the_first_step_moves_by_one_learning_rate():
    assert direction_bound((0.9, 0.999), 1) == pytest.approx(1.0)
    assert direction_bound((0.9, 0.999), 10**7) == pytest.approx(0.1 / math.sqrt(0.001) / math.sqrt(1 - 0.81 / 0.999))


@settings(max_examples=60, deadline=None)
@given(BETAS, st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 30), st.sampled_from([0.0, 0.1, 5.0]))
def test_honest_adamw_in_float32_stays_within_reach(betas, seed, steps, warm, decay):
    rng = np.random.default_rng(seed)
    gradients = rng.standard_cauchy((warm + steps, 20)).astype(np.float32)
    gradients *= rng.choice([0, 1e-6, 1, 1e4], (warm + steps, 1)).astype(np.float32)
    states = adamw(rng.normal(size=20).astype(np.float32), gradients, 1e-2, betas, decay)
    rates = [1e-2] * steps
    assert reach_adamw(states[warm], states[-1], rates, betas, decay, first_step=warm + 1).agrees
    assert reach_adamw(states[warm], states[-1], rates, betas, decay).agrees


def test_weights_that_moved_further_than_adamw_can_are_caught():
    start = np.zeros(100, np.float32)
    stolen = start.copy()
    stolen[42] = 0.02
    finding = reach_adamw(start, stolen, [1e-3], (0.9, 0.999), 0.0, first_step=1, where="w")
    assert (finding.distance, finding.where) == (pytest.approx(20, rel=1e-3), "w")
    assert not finding.agrees
    assert reach_adamw(start, start + np.float32(1e-3), [1e-3], (0.9, 0.999), 0.0, first_step=1).agrees


def test_a_bound_for_any_step_exceeds_the_bound_of_each():
    one = np.ones(1)
    moved = reach_adamw(np.zeros(1), one, [1.0], (0.9, 0.95), 0.0).distance
    assert all(moved <= 1 / direction_bound((0.9, 0.95), step) for step in range(1, 500))


def test_without_a_bound_everything_is_within_reach():
    assert reach_adamw(np.zeros(1), np.full(1, 1e6), [1e-3], (0.95, 0.9), 0.0).agrees
    assert not reach_adamw(np.zeros(1), np.full(1, 1e6), [1e-3], (0.95, 0.9), 0.0, first_step=1).agrees


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_out_of_reach(value):
    bad = np.array([0.0, value])
    assert not reach_adamw(np.zeros(2), bad, [1e-3], (0.9, 0.999), 0.0).agrees
    assert not reach_sgd(np.zeros(2), bad, [1e-3], [1.0]).agrees


def test_no_learning_rate_reaches_nothing():
    assert reach_adamw(np.zeros(2), np.zeros(2), [0.0], (0.9, 0.999), 0.1).agrees
    assert not reach_adamw(np.zeros(2), np.full(2, 1e-9), [0.0], (0.9, 0.999), 0.1).agrees


def sgd(weights, gradients, rate, momentum, decay):
    buffer, states, buffers = np.zeros_like(weights), [weights], [np.zeros_like(weights)]
    for gradient in gradients:
        buffer = momentum * buffer + gradient + decay * weights
        weights = (weights - rate * buffer).astype(np.float32)
        states.append(weights)
        buffers.append(buffer)
    return states, buffers


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(0, 10), st.sampled_from([0.0, 0.9]), st.booleans())
def test_honest_sgd_in_float32_stays_within_reach(seed, steps, warm, momentum, aligned):
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(warm + steps, 20)).astype(np.float32)
    if aligned:
        gradients[:] = gradients[0]
    states, buffers = sgd(rng.normal(size=20).astype(np.float32), gradients, 0.1, momentum, 0.01)
    norms = np.linalg.norm(gradients.astype(np.float64), axis=1)[warm:].tolist()
    buffered = float(np.linalg.norm(buffers[warm]))
    finding = reach_sgd(
        states[warm], states[-1], [0.1] * steps, norms, momentum, 0.01, momentum_norm=buffered * (1 + 1e-6)
    )
    assert finding.agrees


def test_a_state_that_sgd_cannot_have_reached_is_caught():
    start = {"a": np.zeros(10, np.float32), "step": np.int64(3)}
    far = {"a": np.full(10, 0.2, np.float32), "step": np.int64(4)}
    assert not reach_sgd(start, far, [0.1] * 3, [1.0] * 3).agrees
    assert reach_sgd(start, far, [0.1] * 3, [3.0] * 3).agrees


def test_norms_and_learning_rates_have_to_match():
    with pytest.raises(UsageError, match="gradient norms"):
        reach_sgd(np.zeros(1), np.zeros(1), [0.1], [])


def trained(dtype, steps, rate=1e-4, decay=0.1, betas=(0.9, 0.95), elements=200_000):
    """Weights and second moments after the first step of PyTorch's AdamW in `dtype`, and `steps` later."""
    torch = pytest.importorskip("torch")
    from tallystick.engines.torch.tensors import to_tensor

    drawn = torch.Generator().manual_seed(3)
    weight = torch.nn.Parameter((0.02 * torch.randn(elements, generator=drawn)).to(dtype))
    optimizer = torch.optim.AdamW([weight], lr=rate, betas=betas, weight_decay=decay)
    states = []
    for _ in range(steps + 1):
        weight.grad = (torch.randn(elements, generator=drawn) * (len(states) < 2)).to(dtype)
        optimizer.step()
        states.append((to_tensor(weight.detach().clone()), to_tensor(optimizer.state[weight]["exp_avg_sq"].clone())))
    return states[0], states[-1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("steps", [1, 8])
def test_honest_adamw_of_pytorch_passes_the_screens_in_its_own_dtype(dtype, steps):
    torch = pytest.importorskip("torch")
    (start, moments), (end, later) = trained(getattr(torch, dtype), steps)
    assert reach_adamw(start, end, [1e-4] * steps, (0.9, 0.95), 0.1, first_step=2).agrees
    assert second_moment_floor(moments, later, 0.95, steps).agrees


def test_weights_in_half_precision_that_moved_too_far_are_caught():
    torch = pytest.importorskip("torch")
    (start, _), (end, _) = trained(torch.bfloat16, 1)
    stolen = end.array().copy()
    stolen[0] = 0x3F80  # 1.0
    assert not reach_adamw(start, Tensor.of(stolen, "BF16"), [1e-4], (0.9, 0.95), 0.1, first_step=2).agrees


def test_moments_that_were_kept_under_other_settings_are_counted_until_they_have_faded():
    """A weight with one gradient after 300 steps without: β₂ = 0.999 kept less of its square than 0.95 would."""
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=1e-2, betas=(0.9, 0.999), weight_decay=0.0)
    for gradient in [*[0.0] * 300, 1.0]:
        weight.grad = torch.full((1,), gradient)
        optimizer.step()
    slots, states = optimizer.state[weight], [weight.detach().numpy().copy()]
    memory = float(slots["exp_avg"] / (slots["exp_avg_sq"].sqrt() + 1e-8))
    optimizer.param_groups[0]["betas"] = betas = (0.9, 0.95)
    for _ in range(4):
        weight.grad = torch.zeros(1)
        optimizer.step()
        states.append(weight.detach().numpy().copy())
    for age, (start, end) in enumerate(itertools.pairwise(states)):
        assert reach_adamw(start, end, [1e-2], betas, 0.0, memory=(memory, age)).agrees
        assert not reach_adamw(start, end, [1e-2], betas, 0.0).agrees
        assert not reach_adamw(start, end, [1e-2], betas, 0.0, memory=(memory, 200)).agrees
        assert not reach_adamw(start, end - 0.5, [1e-2], betas, 0.0, memory=(memory, age)).agrees


def test_a_norm_that_pytorch_sums_in_binary32_keeps_no_honest_step_from_its_reach():
    """Of 2·10⁷ equal squares a running sum loses a share; the step is as long as the true norm says."""
    torch = pytest.importorskip("torch")
    gradient = np.full(2 * 10**7, 1e-3, np.float32)
    recorded = float(torch.linalg.vector_norm(torch.from_numpy(gradient)))
    exact = 1e-3 * math.sqrt(gradient.size)
    assert recorded < exact * (1 - 1e-5)
    assert exact <= recorded * norm_shortfall(gradient.size)
    start = np.zeros(gradient.size, np.float32)
    assert reach_sgd(start, start - gradient, [1.0], [recorded]).agrees
    assert not reach_sgd(start, start - np.float32(4) * gradient, [1.0], [recorded]).agrees


def test_the_norm_of_many_tensors_falls_short_by_no_more_than_that_of_the_largest():
    torch = pytest.importorskip("torch")
    gradient = np.full(10**6, 1e-3, np.float32)
    start = {f"weights.{number}": np.zeros_like(gradient) for number in range(20)}
    recorded = float(torch.nn.utils.get_total_norm([torch.from_numpy(gradient)] * len(start)))
    assert norm_shortfall(len(start) * gradient.size) > 1.5 > norm_shortfall(gradient.size + len(start))
    assert reach_sgd(start, dict.fromkeys(start, -gradient), [1.0], [recorded]).agrees
    assert not reach_sgd(start, dict.fromkeys(start, np.float32(-1.5) * gradient), [1.0], [recorded]).agrees


def test_the_shortfall_of_a_small_norm_is_nothing_and_that_of_an_enormous_one_is_finite():
    assert norm_shortfall(1000) == pytest.approx(1, abs=1e-4)
    assert math.isfinite(norm_shortfall(10**12))
