import math

import numpy as np
import pytest

from research.operators.rounding_models import ANY_ORDER, BLOCKED, CASCADE, Probabilistic, Summation, Variance, growth
from tallystick.core.tensors import Tensor
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.balls.ball import Ball
from tallystick.programs.operators.balls.bound import Balls
from tallystick.programs.operators.precision import BFLOAT_SUMS, FORMATS, HALF_SUMS, PLAIN, TENSOR_FLOAT
from tallystick.programs.operators.rounding import DETERMINISTIC, Deterministic, Model, RoundedSums, worst_factor

ROWS = 64
SIZES = [256, 1024, 4096, 16384]
MODELS = [Deterministic(), Probabilistic(6.0), Variance(6.0, ANY_ORDER)]


def drawn(kind: str, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, k])
    numbers = rng.random if kind == "positive" else rng.standard_normal
    x, y = numbers((ROWS, k)), numbers((k, ROWS))
    if kind == "heavy":
        x = x * np.exp(2 * rng.standard_normal((ROWS, k)))
    return x.astype(np.float32), y.astype(np.float32)


def chained(x: np.ndarray, y: np.ndarray, block: int | None = None) -> np.ndarray:
    """Products added one after the other in float32, in blocks whose sums are added one after the other."""
    total = np.zeros((len(x), y.shape[1]), np.float32)
    for start in range(0, x.shape[1], block or x.shape[1]):
        part = np.zeros_like(total)
        for i in range(start, min(start + (block or x.shape[1]), x.shape[1])):
            part += x[:, i : i + 1] * y[i]
        total += part
    return total.astype(np.float64)


def product_ball(x: np.ndarray, y: np.ndarray, model: Model) -> Ball:
    balls = Balls(NUMPY, model=model)
    return balls.dot(balls.load(Tensor.of(x)), balls.load(Tensor.of(y)), ((1,), (0,)))


def used(computed: np.ndarray, ball: Ball) -> np.ndarray:
    return np.abs(computed - ball.array) / ball.radius


@pytest.mark.parametrize("kind", ["normal", "positive", "heavy"])
@pytest.mark.parametrize("k", SIZES[:3])
def test_every_model_holds_for_sums_in_one_chain(kind: str, k: int) -> None:
    x, y = drawn(kind, k)
    computed = chained(x, y)
    for model in MODELS:
        assert used(computed, product_ball(x, y, model)).max() <= 1, model.name


@pytest.mark.parametrize("kind", ["normal", "positive", "heavy"])
@pytest.mark.parametrize("k", SIZES)
def test_the_blocked_variance_bound_holds_for_blas_and_is_close(kind: str, k: int) -> None:
    x, y = drawn(kind, k)
    share = used((x @ y).astype(np.float64), product_ball(x, y, Variance(6.0, BLOCKED))).max()
    assert 1 / 16 <= share <= 1


@pytest.mark.parametrize("k", SIZES[:3])
def test_the_blocked_variance_bound_holds_for_blocks_as_stated(k: int) -> None:
    x, y = drawn("positive", k)
    assert used(chained(x, y, 256), product_ball(x, y, Variance(6.0, BLOCKED))).max() <= 1


def test_a_tree_other_than_the_stated_one_leaves_the_variance_bound() -> None:
    x, y = drawn("positive", 4096)
    assert used(chained(x, y), product_ball(x, y, Variance(6.0, Summation(64)))).max() > 1


@pytest.mark.parametrize("k", SIZES[1:3])
def test_the_norm_alone_is_no_bound_where_terms_have_a_mean(k: int) -> None:
    x, y = drawn("positive", k)
    computed, ball = (x @ y).astype(np.float64), product_ball(x, y, Variance(6.0, BLOCKED))
    norm_alone = 6 * 2.0**-24 * math.log2(k) * np.sqrt((x.astype(np.float64) ** 2) @ (y.astype(np.float64) ** 2))
    assert (np.abs(computed - ball.array) / norm_alone).max() > 1
    assert used(computed, ball).max() <= 1


@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_the_stated_failure_probability_is_not_exceeded(kind: str) -> None:
    model = Variance(2.5, ANY_ORDER)
    shares = []
    for seed in range(4):
        x, y = drawn(kind, 512, seed)
        shares.append(used(chained(x, y), product_ball(x, y, model)))
    assert np.mean(np.stack(shares) > 1) <= model.failure


def test_a_bound_ten_times_as_tight_would_exceed_its_failure_probability() -> None:
    x, y = drawn("normal", 512)
    model = Variance(4.0, ANY_ORDER)
    assert np.mean(10 * used(chained(x, y), product_ball(x, y, model)) > 1) > model.failure


@pytest.mark.parametrize(
    ("k", "worst", "likely"), [(1024, 6.1e-5, 7.6e-6), (4096, 2.44e-4, 1.5e-5), (16384, 9.8e-4, 3.1e-5)]
)
def test_factors_agree_with_the_published_formulas(k: int, worst: float, likely: float) -> None:
    assert worst_factor(k, 2.0**-24) == pytest.approx(worst, rel=0.02)
    sums = RoundedSums(terms=k + 1, unit=2.0**-24, value=lambda: 0.0, magnitude=1.0, norm=lambda: 1.0)
    assert Probabilistic(4.0).spread(sums, NUMPY) == pytest.approx(likely, rel=0.03)


def test_sums_in_bfloat16_have_no_deterministic_bound_from_256_terms_on() -> None:
    assert worst_factor(255, FORMATS["BF16"].unit) < math.inf
    assert worst_factor(256, FORMATS["BF16"].unit) == math.inf


def test_growth_is_that_of_the_closed_form_at_every_grid_point_or_less() -> None:
    """A coarser minimum can only be larger, which in closed form is one of Bernstein's kind."""
    for k in (2, 64, 4096):
        tree = Summation(64).tree(k, True)
        bernstein = math.sqrt(2 * 18.0 * float(tree.depth)) + math.sqrt(float(tree.peak)) * 18.0
        assert growth(tree, 18.0) <= bernstein


@pytest.mark.parametrize("k", [1, 2, 3, 17, 100])
def test_tree_numbers_bound_those_of_the_tree_itself(k: int) -> None:
    shared = np.array([[k - max(i, j, 1) for j in range(k)] for i in range(k)], np.float64)  # additions after both
    tree = ANY_ORDER.tree(k, False)
    assert np.mean(np.diag(shared)) <= tree.depth
    assert np.linalg.eigvalsh(shared).max() / k <= tree.peak
    assert math.sqrt(sum(n * n for n in range(2, k + 1))) / k <= tree.coherent


def cascaded(x: np.ndarray) -> np.ndarray:
    """Chains of 16 terms, and of 16 sums, again and again, in float32."""
    while x.shape[1] > 1:
        x = np.pad(x, ((0, 0), (0, -x.shape[1] % 16)))
        x = np.add.accumulate(x.reshape(len(x), -1, 16), axis=2)[..., -1]
    return x[:, 0]


@pytest.mark.parametrize("kind", ["normal", "positive", "heavy"])
@pytest.mark.parametrize("k", SIZES)
def test_the_cascading_variance_bound_holds_for_cascades_and_is_close(kind: str, k: int) -> None:
    x = drawn(kind, k)[0]
    balls = Balls(NUMPY, model=Variance(6.0), plain=True)
    share = used(cascaded(x).astype(np.float64), balls.sum(balls.load(Tensor.of(x)), (1,))).max()
    assert 1 / 40 <= share <= 1


def test_one_long_chain_leaves_the_bound_of_cascades() -> None:
    x = drawn("positive", 16384)[0]
    balls = Balls(NUMPY, model=Variance(6.0), plain=True)
    chain = np.add.accumulate(x, axis=1)[:, -1].astype(np.float64)
    assert used(chain, balls.sum(balls.load(Tensor.of(x)), (1,))).max() > 1


@pytest.mark.parametrize("k", [1, 5, 16, 17, 100, 256, 300])
def test_tree_numbers_of_cascades_bound_those_of_the_tree_itself(k: int) -> None:
    shared, sizes = np.zeros((k, k)), []
    spans = [(i, i + 1) for i in range(k)]
    while len(spans) > 1:
        merged = []
        for start in range(0, len(spans), 16):
            low = spans[start][0]
            for _, high in spans[start + 1 : start + 16]:
                shared[low:high, low:high] += 1
                sizes.append(high - low)
            merged.append((low, spans[min(start + 15, len(spans) - 1)][1]))
        spans = merged
    tree = CASCADE.tree(k, False)
    assert np.mean(np.diag(shared)) <= tree.depth
    assert np.linalg.eigvalsh(shared).max() / k <= tree.peak
    assert math.sqrt(sum(n * n for n in sizes)) / k <= tree.coherent


def halved(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def test_products_of_truncated_operands_need_the_term_of_tensor_cores() -> None:
    x, y = drawn("positive", 256)
    computed = (halved(x).astype(np.float64) @ halved(y).astype(np.float64)).astype(np.float32).astype(np.float64)
    narrow, plain = (_deterministic(x, y, precision) for precision in (TENSOR_FLOAT, PLAIN))
    assert used(computed, narrow).max() <= 1 < used(computed, plain).max()


def test_operands_that_tensor_cores_hold_exactly_are_not_rounded() -> None:
    x, y = (halved(each) for each in drawn("positive", 256))
    assert np.array_equal(_deterministic(x, y, TENSOR_FLOAT).radius, _deterministic(x, y, PLAIN).radius)


def _deterministic(x: np.ndarray, y: np.ndarray, precision: object) -> Ball:
    balls = Balls(NUMPY, precision, DETERMINISTIC)  # type: ignore[arg-type]
    return balls.dot(balls.load(Tensor.of(x)), balls.load(Tensor.of(y)), ((1,), (0,)))


def test_running_sums_in_half_precision_need_their_own_unit() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((8, 100)).astype(np.float16), rng.random((100, 8)).astype(np.float16)
    total = np.zeros((8, 8), np.float16)
    for i in range(100):
        total = (total + x[:, i : i + 1] * y[i]).astype(np.float16)
    wide = {}
    for precision in (HALF_SUMS, PLAIN):
        balls = Balls(NUMPY, precision)
        operands = (balls.wide(balls.load(Tensor.of(each))) for each in (x, y))
        wide[precision] = used(total.astype(np.float64), balls.cast(balls.dot(*operands, ((1,), (0,))), "F16"))
    assert wide[HALF_SUMS].max() <= 1 < wide[PLAIN].max()


def test_a_stated_accumulator_is_never_better_than_the_nominal_one() -> None:
    assert BFLOAT_SUMS.accumulator("F32") is FORMATS["BF16"]
    assert BFLOAT_SUMS.accumulator("BF16") is FORMATS["BF16"]
    assert HALF_SUMS.accumulator("BF16") is FORMATS["BF16"]
