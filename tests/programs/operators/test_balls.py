import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.balls.ball import Ball
from tallystick.programs.operators.balls.bound import Balls, ResultBound, bound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.precision import FORMATS, Precision
from tallystick.programs.operators.values import Value
from tests.support.array_libraries import library

BALLS = Balls(NUMPY)
U = 2.0**-24


def exact(*numbers: float, dtype: str = "F32") -> Ball:
    return Ball(Value(np.array(numbers, np.float64), dtype))


def within(numbers: list[float], radii: list[float], least: float = -math.inf) -> Ball:
    return Ball(Value(np.array(numbers), "F32"), np.array(radii), least)


def radius(ball: Ball) -> list[float]:
    return list(np.broadcast_to(ball.width, ball.shape).reshape(-1))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with NUMPY.quiet():
        yield


def test_moves_and_choices_of_exact_values_are_exact() -> None:
    x = exact(1.0, -2.0, 3.0)
    for moved in (
        BALLS.neg(x),
        BALLS.flip(x, (0,)),
        BALLS.maximum(x, 0),
        BALLS.max(x, (0,)),
        BALLS.sort(x, 0, False)[0],
    ):
        assert moved.radius is None
    assert BALLS.wide(exact(1.0, dtype="BF16")).radius is None


def test_one_operation_rounds_once() -> None:
    ball = BALLS.mul(exact(3.0), exact(5.0))
    assert 15 * U < radius(ball)[0] < 15.001 * U


def test_a_constant_that_the_dtype_lacks_has_a_radius() -> None:
    assert radius(BALLS.full((), 0.1, "F32"))[0] == pytest.approx(abs(0.1 - np.float64(np.float32(0.1))))
    assert BALLS.full((), 0.5, "F32").radius is None


def test_a_square_is_known_not_to_be_negative_and_its_root_is_bounded() -> None:
    x = within([1e-6], [1e-5])
    assert radius(BALLS.sqrt(BALLS.mul(x, x)))[0] < 1e-3
    assert radius(BALLS.sqrt(within([1e-12], [1e-9])))[0] == math.inf


def test_epsilon_keeps_the_reciprocal_root_of_a_variance_bounded() -> None:
    x = within([0.0], [1e-6])
    assert radius(BALLS.rsqrt(BALLS.add(BALLS.mul(x, x), 1e-5)))[0] < 1
    assert radius(BALLS.rsqrt(BALLS.mul(x, x)))[0] == math.inf


def test_a_divisor_that_may_be_zero_promises_nothing() -> None:
    assert radius(BALLS.div(exact(1.0), within([0.5], [0.4])))[0] < math.inf
    assert radius(BALLS.div(exact(1.0), within([0.5], [0.6])))[0] == math.inf


def test_overlapping_balls_leave_a_choice_open_and_a_selection_reaches_both_sides() -> None:
    x = within([1.0, 1.0], [0.5, 0.5])
    choice = BALLS.compare(x, exact(1.4, 1.6), "lt")
    assert radius(choice) == [math.inf, 0.0]
    assert radius(BALLS.where(choice, exact(1.0, 1.0), exact(3.0, 3.0))) == [2.0, 0.0]


def test_indices_are_unknown_where_values_overlap() -> None:
    assert np.all(np.asarray(BALLS.argmax(within([1.0, 2.0], [0.1, 0.1]), 0).width) == 0)
    assert np.all(np.asarray(BALLS.argmax(within([1.0, 2.0], [0.6, 0.6]), 0).width) == math.inf)
    values, order = BALLS.sort(within([1.0, 2.0, 9.0], [0.6, 0.6, 0.1]), 0, False)
    assert radius(order)[:2] == [math.inf, math.inf]
    assert max(radius(values)) == pytest.approx(0.6)


def test_what_is_gathered_at_an_unknown_index_is_unknown() -> None:
    index = Ball(Value(np.array([0, 1]), "I64"), np.array([0.0, math.inf]))
    assert radius(BALLS.take(exact(1.0, 2.0), [index], 0)) == [0.0, math.inf]


def test_whole_numbers_are_unknown_where_the_ball_crosses_one_or_the_type_ends() -> None:
    assert radius(BALLS.cast(within([1.5, 1.9], [0.2, 0.2]), "I32")) == [0.0, math.inf]
    assert radius(BALLS.cast(exact(1e20, 5.0), "I32")) == [math.inf, 0.0]


def test_possible_overflow_promises_nothing() -> None:
    assert radius(BALLS.mul(exact(1e30, 1.0), exact(1e30, 1.0)))[0] == math.inf
    assert radius(BALLS.sum(exact(3e38, 3e38, -3e38), (0,)))[0] == math.inf
    assert BALLS.cast(exact(7e4), "F16").radius[0] == math.inf


def test_infinities_of_operands_are_promised_by_class() -> None:
    result = BALLS.add(exact(math.inf, math.inf, math.nan), exact(1.0, -math.inf, 1.0))
    assert radius(result) == [0.0, 0.0, 0.0]
    assert np.array_equal(result.array, [math.inf, math.nan, math.nan], equal_nan=True)
    assert radius(BALLS.exp(exact(-math.inf)))[0] == 0


def test_a_subnormal_operand_may_be_read_as_zero_unless_stated() -> None:
    x = exact(1e-40)
    assert radius(BALLS.mul(x, exact(1e20)))[0] >= 1e-20
    assert radius(Balls(NUMPY, Precision(flush=False)).mul(x, exact(1e20)))[0] < 1e-24


def test_steps_and_order_of_numbers_that_may_be_read_as_zero_are_open() -> None:
    assert radius(BALLS.floor(exact(-1e-40, -1e-30))) == pytest.approx([1.0, 0.0])
    assert radius(BALLS.sign(exact(1e-40, 1e-30))) == pytest.approx([1.0, 0.0])
    values, order = BALLS.sort(exact(-5e-40, -1e-45, 1.0), 0, False)
    assert radius(values)[1] >= 5e-40
    assert values.width[2] == 0
    assert radius(order)[:2] == [math.inf, math.inf]
    assert BALLS.sort(exact(-5e-30, -1e-35, 1.0), 0, False)[0].radius is None


def test_a_wider_format_shows_that_a_subnormal_number_was_read_as_zero() -> None:
    assert radius(BALLS.cast(exact(1e-40), "F64"))[0] >= 1e-40
    assert BALLS.cast(exact(1e-30), "F64").radius is None


def test_an_exponent_that_the_dtype_lacks_moves_large_powers() -> None:
    x = np.float32(1.3326223e21)
    kept, rounded = (float(x) ** y for y in (1.7, float(np.float32(1.7))))
    assert abs(kept - rounded) <= radius(BALLS.pow(exact(float(x)), 1.7))[0] < 1e-4 * kept
    assert radius(BALLS.pow(exact(float(x)), 1.5))[0] < 20 * U * float(x) ** 1.5


def test_one_to_any_power_is_one_even_where_a_base_only_may_be_one() -> None:
    nan = exact(math.nan)
    assert radius(BALLS.pow(within([0.999], [0.002]), nan)) == [math.inf]
    assert radius(BALLS.pow(within([0.9], [0.002]), nan)) == [0.0]


def test_a_sum_that_overflows_before_it_is_scaled_promises_nothing() -> None:
    def reached(alpha: float, size: float) -> float:
        x = np.full((1, 2), size, np.float32)
        arguments = {"self": np.zeros(1, np.float32), "mat1": x, "mat2": x.T.copy(), "beta": 1, "alpha": alpha}
        loaded = {k: Tensor.of(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        [found] = bound(operator("aten.addmm.default"), loaded)
        assert found is not None
        return float(found.radius[0, 0])

    assert reached(0.1, 1.5e19) == math.inf
    assert reached(0.1, 1e18) < 1e30


def test_integers_and_their_sums_are_exact() -> None:
    x = Ball(Value(np.arange(6).reshape(2, 3), "I64"))
    assert BALLS.sum(x, (0,)).radius is None
    assert BALLS.dot(x, x, ((1,), (1,))).radius is None


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_every_library_gives_the_bounds_that_numpy_gives(name: str) -> None:
    pytest.importorskip(name)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 32)).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    arguments = {"input": Tensor.of(x), "normalized_shape": (32,), "weight": Tensor.of(w), "bias": None, "eps": 1e-5}
    described = operator("aten.native_layer_norm.default")
    with _wide(name):
        ours, theirs = bound(described, arguments), bound(described, arguments, library=library(name))
    for one, other in zip(ours, theirs, strict=True):
        assert one is not None
        assert other is not None
        np.testing.assert_allclose(other.value, one.value, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(other.radius, one.radius, rtol=1e-6)


def _wide(name: str) -> contextlib.AbstractContextManager[Any]:
    if name != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)  # type: ignore[no-any-return]


def test_excess_tells_classes_apart() -> None:
    promised = ResultBound("F32", np.array([1.0, np.nan, np.inf, 5.0]), np.array([0.5, 0.0, 0.0, np.inf]))
    honest = Tensor.of(np.array([1.25, np.nan, np.inf, 9.0], np.float32))
    assert list(promised.excess(honest)) == [0.5, 0.0, 0.0, 0.0]
    wrong = Tensor.of(np.array([np.nan, 1.0, -np.inf, np.nan], np.float32))
    assert list(promised.excess(wrong)) == [np.inf, np.inf, np.inf, 0.0]


def test_a_claim_of_another_shape_is_refused() -> None:
    with pytest.raises(MalformedError):
        ResultBound("F32", np.zeros(3), np.zeros(3)).excess(Tensor.of(np.zeros(4, np.float32)))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_are_those_of_the_standard(name: str) -> None:
    form = FORMATS[name]
    if name in {"F16", "F32", "F64"}:
        info = np.finfo({"F16": np.float16, "F32": np.float32, "F64": np.float64}[name])
        assert (form.unit, form.smallest_normal, form.largest) == (info.eps / 2, info.tiny, info.max)
    else:
        assert form.largest < FORMATS["F32"].largest


def test_an_unknown_format_is_refused() -> None:
    assert Precision(products="TF32").products == "TF32"
    with pytest.raises(MalformedError):
        Precision(products="F12")


def test_a_number_without_a_bound_has_none_beside_a_limit() -> None:
    """As log p below −100 in a cross entropy, where p is a subnormal number that a device may read as 0."""
    balls = Balls(NUMPY)
    lost = Ball(Value(np.array([-np.inf, -200.0]), "F32"), np.array([np.inf, 1.0]))
    found = balls.maximum(lost, -100.0)
    assert found.radius is not None
    assert found.radius[0] == np.inf
    assert found.radius[1] < 1e-5
