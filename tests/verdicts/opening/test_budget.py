"""Errors that point in one direction are told from honest ones; what cannot be measured is never a pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import graph_bytes, graph_root
from tallystick.programs.execution import execute
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import operator
from tallystick.verdicts.opening.budget import (
    SYSTEMATIC,
    Accumulated,
    OperatorBias,
    PathError,
    accumulate,
    budget_of,
    compare_with_budget,
    judge_budget,
    relative_distance,
    signed_shares,
)
from tallystick.verdicts.profiles import Budget
from tests.verdicts.leaf.leaves import NumpyEngine, bindings, classifier, node

SIDE, DEPTH = 24, 40
Values = dict[str, Tensor]


def chain(depth: int = DEPTH, with_tanh: bool = True) -> Graph:
    """A product and its tanh, again and again; or products alone."""
    square = TensorSpec("F32", (SIDE, SIDE))
    nodes, before = [], "inputs.x"
    for number in range(0, 2 * depth, 2):
        product = node(number, "mm.default", {"self": before, "mat2": "weights.w"}, [["F32", SIDE, SIDE]])
        tanh = node(number + 1, "tanh.default", {"self": f"n{number}"}, [["F32", SIDE, SIDE]])
        nodes += [product, tanh] if with_tanh else [product]
        before = f"n{number + with_tanh}"
    inputs = (Input("inputs.x", Role.INPUT, square), Input("weights.w", Role.WEIGHT, square))
    outputs = (Output("outputs.y", before),)
    return read_graph(graph_bytes(Graph("aten", GraphForm.LOGICAL, inputs, (), tuple(nodes), outputs)))


GRAPH = chain()
ROOT = graph_root(GRAPH)


def given(seed: int) -> Values:
    rng = np.random.default_rng(seed)
    orthogonal = np.linalg.qr(rng.normal(size=(SIDE, SIDE)))[0] * 1.3
    x = rng.normal(size=(SIDE, SIDE)) / 3
    return {"inputs.x": Tensor.of(x.astype(np.float32)), "weights.w": Tensor.of(orthogonal.astype(np.float32))}


def run(graph: Graph, sources: Mapping[str, Tensor], shift: float = 0.0, signs: int | None = None) -> Values:
    """Every value of a run in which products lie `shift` of their bound beside what is computed."""
    held, engine = dict(sources), NumpyEngine()
    rng = np.random.default_rng(signs)

    def watch(each: Node, _: Any, results: tuple[Any, ...]) -> None:
        for ref, spec, result in zip(each.outputs, each.results, results, strict=True):
            assert ref is not None
            assert spec is not None
            held[ref] = (
                moved(each, held, engine.unload(result, spec.dtype)) if shift else engine.unload(result, spec.dtype)
            )
            result.array[...] = held[ref].array()  # what is claimed is computed on

    def moved(each: Node, values: Values, honest: Tensor) -> Tensor:
        if each.operator != "aten.mm.default":
            return honest
        arguments = {name: values[str(ref)] for name, ref in each.operands.items()}
        limit = bound(operator(each.operator), arguments)[0]
        assert limit is not None
        direction = np.ones(limit.radius.shape) if signs is None else rng.choice([-1.0, 1.0], limit.radius.shape)
        return Tensor.of((honest.array() + shift * direction * limit.radius).astype(np.float32))

    execute(graph, sources, engine, watch)
    return held


@pytest.fixture(scope="module")
def honest() -> list[Accumulated]:
    return [accumulate(GRAPH, run(GRAPH, given(seed)).get) for seed in range(4)]


@pytest.fixture(scope="module")
def budget(honest: list[Accumulated]) -> Budget:
    return budget_of(ROOT, honest)


def objections(values: Values, budget: Budget) -> set[str]:
    return {finding.name for finding in judge_budget(GRAPH, values.get, budget).objections}


def test_honest_runs_stay_within_a_budget_that_was_not_made_of_them(budget: Budget) -> None:
    for seed in range(10, 16):
        verdict = judge_budget(GRAPH, run(GRAPH, given(seed)).get, budget)
        assert verdict.outcome == "accepted", [finding.name for finding in verdict.objections]


@pytest.mark.parametrize("share", [0.05, 0.2, 0.9])
def test_errors_of_one_sign_inside_every_bound_leave_it(budget: Budget, share: float) -> None:
    assert "bias in one direction" in objections(run(GRAPH, given(20), share), budget)


def test_errors_as_large_without_a_direction_have_no_bias(budget: Budget) -> None:
    found = objections(run(GRAPH, given(20), 0.2, signs=3), budget)
    assert not {name for name in found if name.startswith("bias")}


def test_errors_that_grow_leave_the_path(budget: Budget) -> None:
    assert "path" in objections(run(GRAPH, given(20), 0.9), budget)


def test_aligned_errors_grow_like_the_length_and_others_like_its_root() -> None:
    """Products with a matrix that only averages: the mean of all numbers, and an error of it, stay."""
    weights = np.full((SIDE, SIDE), 0.5 / SIDE) + 0.5 * np.eye(SIDE)
    sources = {"inputs.x": Tensor.of(np.ones((SIDE, SIDE), np.float32)), "weights.w": Tensor.of(weights.astype("f4"))}
    steps: dict[int | None, list[float]] = {None: [], 3: []}
    for depth in (10, 90):
        graph = chain(depth, with_tanh=False)
        for signs, found in steps.items():
            error = accumulate(graph, run(graph, sources, 0.5, signs).get).path_errors[0]
            assert error.length == depth
            found.append(error.steps)
    assert steps[None][1] / steps[None][0] == pytest.approx(3.0, rel=0.1)  # √9: nine times the distance
    assert steps[3][1] / steps[3][0] < 1.2


def test_what_is_not_opened_leaves_it_open(budget: Budget) -> None:
    values = run(GRAPH, given(1))
    for ref in ("n7", "inputs.x"):
        cut = {name: value for name, value in values.items() if name != ref}
        verdict = judge_budget(GRAPH, cut.get, budget)
        assert verdict.outcome == "inconclusive"
        assert verdict.unavailable


@pytest.mark.parametrize("ref", ["n7", "weights.w"])
def test_a_value_of_another_shape_is_none(budget: Budget, ref: str) -> None:
    values = run(GRAPH, given(1)) | {ref: Tensor.of(np.ones((2, 3), np.float32))}
    assert judge_budget(GRAPH, values.get, budget).outcome == "inconclusive"


def test_nothing_measured_is_inconclusive() -> None:
    assert compare_with_budget(Accumulated((), ()), budget_of(ROOT, [Accumulated((), ())])).outcome == "inconclusive"


def test_behind_a_choice_that_came_out_otherwise_nothing_is_compared() -> None:
    graph, values = classifier(), run(classifier(), bindings())
    assert {error.name for error in accumulate(graph, values.get).path_errors} == {"outputs.sum"}
    classes = values["n7"].array().copy()
    classes[0] = (classes[0] + 1) % 5
    found = accumulate(graph, {**values, "n7": Tensor.of(classes)}.get)
    assert any("came out otherwise" in line for line in found.unavailable)


def test_a_score_is_the_mean_in_standard_errors_of_chance_and_habit() -> None:
    bias = OperatorBias("n0", 100, 0.1, 0.2)
    assert bias.score == pytest.approx(0.1 / math.hypot(0.2 / 10, SYSTEMATIC * 0.2))
    assert OperatorBias("n0", 10**9, 0.2, 0.2).score == pytest.approx(1 / SYSTEMATIC, rel=1e-3)
    assert OperatorBias("n0", 100, 0.0, 0.0).score == 0.0


def test_one_direction_adds_signs_up_and_any_direction_does_not() -> None:
    up, down = OperatorBias("a", 10**6, 0.1, 0.1), OperatorBias("b", 10**6, -0.1, 0.1)
    both, same = Accumulated((up, down), ()), Accumulated((up, up), ())
    assert both.one_direction == pytest.approx(0.0)
    assert same.one_direction == pytest.approx(up.score * 2**0.5)
    assert both.any_direction == same.any_direction == pytest.approx(up.score)


def test_a_path_is_measured_in_roundings_times_the_root_of_its_length() -> None:
    assert PathError("y", 3e-7, 9, 1e-7).steps == pytest.approx(1.0)


@pytest.mark.parametrize(
    "runs", [[], [Accumulated((), (PathError("y", math.inf, 4, 1.0),))]], ids=["no run", "infinitely far"]
)
def test_no_budget_is_made_of_nothing_or_of_a_run_without_a_distance(runs: list[Accumulated]) -> None:
    with pytest.raises(MalformedError, match="budget: "):
        budget_of(ROOT, runs)


def test_a_budget_is_so_many_times_the_largest_honest_one() -> None:
    runs = [Accumulated((OperatorBias("a", 100, mean, 0.1),), (PathError("y", mean, 4, 1.0),)) for mean in (0.01, 0.03)]
    found = budget_of(ROOT, runs, safety=3.0)
    assert found.paths == {"y": pytest.approx(3 * 0.015)}
    assert found.one_direction == pytest.approx(3 * runs[1].one_direction)
    assert compare_with_budget(runs[1], found).outcome == "accepted"
    assert compare_with_budget(Accumulated(runs[1].biases, (PathError("z", 9.0, 4, 1.0),)), found).outcome == "rejected"


@pytest.mark.parametrize(
    ("claimed", "exact", "expected"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 5.0], [3.0, 4.0], 0.2),
        ([math.inf, 4.0], [math.inf, 4.0], 0.0),
        ([math.nan, 4.0], [1.0, 4.0], math.inf),
        ([1.0], [0.0], math.inf),
    ],
)
def test_relative_distances(claimed: list[float], exact: list[float], expected: float) -> None:
    assert relative_distance(np.array(claimed), np.array(exact)) == pytest.approx(expected)


def test_shares_leave_out_what_has_no_radius() -> None:
    claimed = Tensor.of(np.float32([1.0, 2.0, np.nan, 9.0, 5.0]))
    radius = np.array([0.5, 0.0, 1.0, np.inf, 1.0])
    assert signed_shares(claimed, np.array([0.75, 1.0, 1.0, 1.0, 9.0]), radius).tolist() == [0.5, -1.0]
