"""Bounds of whole passes on PyTorch hold everything that a judge's bound holds, and not much more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from research.operators.rounding_models import Variance
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.engines.torch.graph_bounds import NORMS, SUMS, GraphBounds, TensorBound
from tallystick.programs.operators.balls.bound import ResultBound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.precision import PLAIN, Precision
from tallystick.programs.operators.rounding import DETERMINISTIC, Model
from tests.programs.operators.examples import Call
from tests.programs.operators.honest import as_dtype, bounds_of, redrawn
from tests.programs.operators.measured import SIZED
from tests.programs.operators.single import as_graph
from tests.programs.operators.test_soundness import EXAMPLES, runs

pytestmark = pytest.mark.filterwarnings("ignore")
TINY = 2.0**-126
"""What a judge allows an exact 0 beside subnormal numbers, where nothing can be lost."""
WIDER = {
    "aten.addmm.default": 2.4,  # sums of few terms, whose results are smaller than Σ|x||w|
    "aten.conv1d.default": 2.3,
    "aten.conv1d.padding": 2.3,
    "aten.conv2d.padding": 2.2,
    "aten.conv2d.default": 2.1,
    "aten.hardsigmoid_backward.default": 2.3,  # ends of constant steps
    "aten.arange.start_step": 2.1,
    "aten.cross_entropy_loss.default": 2.1,
}


def pairs(call: Call, precision: Precision = PLAIN, **settings: Any) -> Iterator[tuple[TensorBound, ResultBound]]:
    """The bound of each float result with the judge's bound; nothing where an engine refuses the call."""
    try:
        exact = bounds_of(call, precision=precision)
        graph, bindings = as_graph(call, exact)
        found = GraphBounds(graph, bindings, precision, **settings).run(bindings)
    except (MalformedError, UnavailableError):
        return
    yield from ((found[ref], each) for ref, each in zip(graph.nodes[0].outputs, exact, strict=True) if ref in found)  # type: ignore[misc]


def holds(fast: TensorBound, judge: ResultBound) -> bool:
    value, radius = (each.double().numpy() for each in (fast.value, fast.radius))
    with np.errstate(all="ignore"):
        same = (value == judge.value) | (np.isnan(value) & np.isnan(judge.value))
        reach = np.where(same, 0.0, np.abs(value - judge.value)) + judge.radius
    return bool(((reach <= radius * (1 + 1e-6) + TINY) | np.isposinf(radius)).all())


def check(name: str, count: int | None, seed: int, **settings: Any) -> None:
    for call, precision in islice(runs(name, 1, seed), count):
        for fast, judge in pairs(call, precision, **settings):
            assert judge.dtype == "F64" or holds(fast, judge), f"{call}"


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_bounds_of_a_pass_hold_those_of_a_judge(name: str) -> None:
    check(name, 1, 11)


@pytest.mark.parametrize("name", ["aten.linear.default", "aten.bmm.default", "aten.conv2d.default"])
def test_bounds_by_norms_hold_those_of_a_judge(name: str) -> None:
    check(name, 1, 11, products=NORMS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_all_bounds_of_a_pass_hold_those_of_a_judge(name: str, seed: int) -> None:
    check(name, None, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(SUMS & set(EXAMPLES)))
def test_all_bounds_by_norms_hold_those_of_a_judge(name: str, seed: int) -> None:
    check(name, None, seed, products=NORMS)


@pytest.mark.parametrize(
    "name", sorted({*SIZED, *WIDER, "aten.gelu.default", "aten.conv2d.default", "aten.exp.default"})
)
def test_they_are_twice_as_wide_for_f32_and_no_wider(name: str) -> None:
    example = EXAMPLES[name][0]
    call = redrawn(Call(name, {**example.arguments, **SIZED.get(name, {})}), ("normal",), "F32", 3)
    for fast, judge in pairs(call):
        some = np.isfinite(judge.radius) & (judge.radius > 1e-30)
        ratio = fast.radius.double().numpy()[some] / judge.radius[some]
        assert ratio.size == 0 or ratio.max() <= WIDER.get(name, 2.02)


def test_they_are_hardly_wider_for_bf16() -> None:
    example = EXAMPLES["aten.layer_norm.default"][0]
    for fast, judge in pairs(redrawn(example, ("normal",), "BF16", 3)):
        assert (fast.radius.double().numpy() <= 1.05 * judge.radius).all()


@pytest.fixture
def product() -> Call:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 64), (16, 64), (16,)))
    return Call("aten.linear.default", {"input": x, "weight": w, "bias": b})


def test_a_claim_of_shorter_products_is_outside_and_an_honest_one_inside(product: Call) -> None:
    ((fast, _),) = pairs(product)
    x, w, b = (torch.from_numpy(each) for each in product.arguments.values())
    honest = (x.double() @ w.double().T + b).float()
    short = torch.nn.functional.linear(x.bfloat16().float(), w, b)
    assert ((honest - fast.value).abs() <= fast.radius).all()
    assert not ((short - fast.value).abs() <= fast.radius).all()


def test_weights_are_known_beforehand_and_operators_of_one_kind_are_recorded_once(product: Call) -> None:
    exact = bounds_of(product)
    graph, bindings = as_graph(product, exact, frozenset({"weight", "bias"}))
    bounds = GraphBounds(graph, bindings)
    inputs = {"input": bindings["input"]}
    first, second = bounds.run(inputs)["n0"], bounds.run(inputs)["n0"]
    assert torch.equal(first.radius, second.radius)
    assert holds(first, exact[0])  # type: ignore[arg-type]
    with pytest.raises(MalformedError, match="weight is not bound"):
        GraphBounds(graph, inputs)
    with pytest.raises(MalformedError, match="input is not bound"):
        bounds.run({})


def radius_of(call: Call, fixed: frozenset[str] = frozenset(), **settings: Any) -> torch.Tensor:
    graph, bindings = as_graph(call, bounds_of(call), fixed)
    return GraphBounds(graph, bindings, **settings).run(bindings)["n0"].radius


@pytest.mark.parametrize("model", [DETERMINISTIC, Variance()])
def test_norms_give_larger_radii_than_magnitudes_but_not_much(product: Call, model: Model) -> None:
    tight, loose = (radius_of(product, model=model, **given) for given in ({}, {"products": NORMS}))
    assert (loose >= tight).all()
    assert (loose <= 2.2 * tight).all()


@pytest.mark.parametrize("settings", [{}, {"products": NORMS}])
def test_nothing_is_subtracted_for_a_mean_that_is_not_known(product: Call, settings: Any) -> None:
    """Of equal terms, some of them negative, a mean of magnitudes leaves nothing."""
    k, w = 64, np.ones((16, 64), np.float32)
    w[:, :3] = -1
    call = Call(product.operator, {"input": np.ones((2, k), np.float32), "weight": w, "bias": None})
    (judge,) = bounds_of(call, model=Variance())
    assert judge is not None
    own = k * 2.0**-24 * k  # γ_k Σ|t| of the computed value itself
    assert (radius_of(call, model=Variance(), **settings).numpy() >= judge.radius + own).all()


def test_numbers_too_small_for_squares_are_in_the_norms(product: Call) -> None:
    x = np.full((8, 64), 1e-25, np.float32)
    call = Call(product.operator, {**product.arguments, "input": x, "bias": np.zeros(16, np.float32)})
    for fast, judge in pairs(call, products=NORMS):
        assert holds(fast, judge)


def test_a_product_with_a_large_weight_has_the_same_radius_whether_the_weight_is_known_beforehand() -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((24, 192), (192, 192)))
    call = Call("aten.linear.default", {"input": x, "weight": w, "bias": None})
    known, unknown = (radius_of(call, fixed) for fixed in (frozenset({"weight"}), frozenset[str]()))
    assert torch.allclose(known, unknown, rtol=2**-14, atol=0)


def test_other_names_of_products_are_refused(product: Call) -> None:
    graph, bindings = as_graph(product, bounds_of(product))
    with pytest.raises(MalformedError, match="by magnitudes or norms, not 'guesses'"):
        GraphBounds(graph, bindings, products="guesses")


@pytest.mark.parametrize("odd", [np.inf, np.nan, 1e-40, 3e38, 1e-25])
@pytest.mark.parametrize("name", ["aten.layer_norm.default", "aten.gelu.default", "aten._softmax.default"])
def test_numbers_that_are_not_ordinary_are_bounded_by_the_rules_for_all(name: str, odd: float) -> None:
    ordinary = as_dtype(EXAMPLES[name][0], "F32")
    operand = next(each.name for each in operator(name).parameters if each.is_operand)
    array = np.array(ordinary.arguments[operand])
    array.reshape(-1)[1] = odd
    for fast, judge in pairs(Call(name, {**ordinary.arguments, operand: array})):
        assert holds(fast, judge)
