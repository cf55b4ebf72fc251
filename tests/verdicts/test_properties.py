"""Properties of values that were never run: what holds for honest ones, and what each check refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.verdicts.properties import PROPERTIES, judge_properties
from tallystick.verdicts.verdict import Findings

Arrays = Mapping[str, np.ndarray[Any, Any]]


def node(
    number: int, name: str, operands: Mapping[str, Any], out: list[np.ndarray[Any, Any]], **attributes: Any
) -> Node:
    specs = tuple(TensorSpec.of(Tensor.of(np.asarray(array))) for array in out)
    return Node(number, f"aten.{name}", operands, attributes, specs)


def graph_of(nodes: list[Node], inputs: Arrays, outputs: Mapping[str, str] | None = None) -> Graph:
    given = tuple(Input(name, Role.WEIGHT, TensorSpec.of(Tensor.of(array))) for name, array in inputs.items())
    named = tuple(Output(name, value) for name, value in (outputs or {}).items())
    return Graph("aten", GraphForm.LOGICAL, given, (), tuple(nodes), named)


def judged(name: str, graph: Graph, arrays: Arrays) -> tuple[bool, tuple[str, ...]]:
    """Whether every finding agrees, and what could not be checked."""
    notes = Findings()
    open_ = judge_properties(notes, graph, {ref: Tensor.of(np.asarray(a)) for ref, a in arrays.items()}, [name])
    return not notes.rejected, open_


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


SCORES = np.random.default_rng(1).normal(size=(3, 50)).astype(np.float32) * 20
WEIGHTS = softmax(SCORES)
SOFTMAX = graph_of(
    [node(0, "_softmax.default", {"self": "x"}, [WEIGHTS], dim=-1, half_to_float=False)], {"x": SCORES}, {"p": "n0"}
)


def nudged(array: np.ndarray[Any, Any], place: tuple[int, ...], by: float) -> np.ndarray[Any, Any]:
    changed = array.copy()
    changed[place] += by
    return changed


def test_rows_of_a_softmax_sum_to_one() -> None:
    assert judged("softmax", SOFTMAX, {"n0": WEIGHTS}) == (True, ())
    assert judged("softmax", SOFTMAX, {"n0": nudged(WEIGHTS, (1, 3), 1e-3)}) == (False, ())
    negative = WEIGHTS.copy()
    negative[0, :2] = [-0.5, WEIGHTS[0, 0] + WEIGHTS[0, 1] + 0.5]
    assert judged("softmax", SOFTMAX, {"n0": negative}) == (False, ())


def test_rows_of_a_log_softmax_are_logarithms_of_weights() -> None:
    logs = np.log(softmax(SCORES.astype(np.float64)).astype(np.float64)).astype(np.float32)
    graph = graph_of([node(0, "log_softmax.int", {"self": "x"}, [logs], dim=1, dtype=None)], {"x": SCORES})
    assert judged("softmax", graph, {"n0": logs}) == (True, ())
    assert judged("softmax", graph, {"n0": logs + np.float32(0.001)}) == (False, ())


@pytest.mark.parametrize("mask", [-np.inf, np.finfo(np.float32).min])
def test_what_a_mask_excludes_has_no_weight(mask: float) -> None:
    masked = SCORES.copy()
    masked[:, 40:] = mask
    kept = softmax(masked)
    assert judged("masks", SOFTMAX, {"x": masked, "n0": kept}) == (True, ())
    assert judged("masks", SOFTMAX, {"x": masked, "n0": nudged(kept, (2, 45), 1e-30)}) == (False, ())


def test_a_mask_is_not_checked_where_nothing_is_masked_or_the_scores_are_not_bound() -> None:
    assert judged("masks", SOFTMAX, {"x": SCORES, "n0": WEIGHTS})[1] != ()
    assert judged("masks", SOFTMAX, {"n0": WEIGHTS})[1] == ("property masks: no value that it applies to is bound",)


def test_a_normalised_row_is_no_longer_than_its_weights_allow() -> None:
    x = np.random.default_rng(2).normal(size=(4, 16))
    w, b = np.full(16, 2.0, np.float32), np.full(16, 0.5, np.float32)
    out = ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b).astype(np.float32)
    layer = node(
        0, "layer_norm.default", {"input": "x", "weight": "w", "bias": "b"}, [out], normalized_shape=(16,), eps=1e-5
    )
    graph = graph_of([layer], {"x": x.astype(np.float32), "w": w, "b": b})
    assert judged("norms", graph, {"n0": out, "w": w, "b": b}) == (True, ())
    assert judged("norms", graph, {"n0": out * np.float32(1.5), "w": w, "b": b}) == (False, ())
    assert judged("norms", graph, {"n0": out, "w": w})[1] != ()


@pytest.mark.parametrize(
    ("operator", "inside", "outside"),
    [
        ("tanh.default", [-1.0, 1.0], 1.01),
        ("sigmoid.default", [0.0, 1.0], -0.01),
        ("relu.default", [0.0, 9.0], -1e-3),
        ("exp.default", [0.0, np.inf], -1.0),
        ("cos.default", [-1.0, 0.5], np.nan),
    ],
)
def test_bounded_functions_stay_in_their_range(operator: str, inside: list[float], outside: float) -> None:
    honest = np.asarray(inside, np.float32)
    graph = graph_of([node(0, operator, {"self": "x"}, [honest])], {"x": honest})
    assert judged("ranges", graph, {"n0": honest}) == (True, ())
    assert judged("ranges", graph, {"n0": np.asarray([inside[0], outside], np.float32)}) == (False, ())


def test_every_bound_value_has_its_shape_and_dtype() -> None:
    assert judged("shapes", SOFTMAX, {"x": SCORES, "n0": WEIGHTS}) == (True, ())
    assert judged("shapes", SOFTMAX, {"x": SCORES[:2]}) == (False, ())
    assert judged("shapes", SOFTMAX, {"x": SCORES.astype(np.float64)}) == (False, ())


def test_weights_and_results_are_finite() -> None:
    assert judged("finite", SOFTMAX, {"x": SCORES, "n0": WEIGHTS}) == (True, ())
    assert judged("finite", SOFTMAX, {"n0": nudged(WEIGHTS, (0, 0), np.nan)}) == (False, ())
    assert judged("finite", SOFTMAX, {"x": nudged(SCORES, (0, 0), np.inf)}) == (False, ())


def test_positions_grow_and_sorted_values_are_sorted() -> None:
    positions, ordered = np.arange(9), np.sort(SCORES, -1)
    nodes = [
        node(0, "arange.default", {}, [positions], end=9),
        node(1, "sort.default", {"self": "x"}, [ordered, np.argsort(SCORES, -1)], dim=-1, descending=False),
    ]
    graph = graph_of(nodes, {"x": SCORES})
    assert judged("positions", graph, {"n0": positions, "n1": ordered}) == (True, ())
    assert judged("positions", graph, {"n0": positions[::-1] // 2}) == (False, ())
    assert judged("positions", graph, {"n1": SCORES}) == (False, ())


def test_a_counter_of_the_state_is_one_further_after_the_step() -> None:
    step, after = np.asarray(4), np.asarray(5)
    graph = graph_of(
        [node(0, "add.Tensor", {"self": "position.step"}, [after])], {"position.step": step}, {"position.step": "n0"}
    )
    assert judged("positions", graph, {"position.step": step, "n0": after}) == (True, ())
    assert judged("positions", graph, {"position.step": step, "n0": after + 1}) == (False, ())


def test_what_is_moved_split_joined_or_summed_is_conserved() -> None:
    first, second = SCORES[:, :20].copy(), SCORES[:, 20:].copy()
    nodes = [
        node(0, "split_with_sizes.default", {"self": "x"}, [first, second], split_sizes=(20, 30), dim=-1),
        node(1, "t.default", {"self": "x"}, [SCORES.T.copy()]),
        node(2, "cat.default", {"tensors": ("n0", "n0.1")}, [SCORES], dim=1),
        node(3, "sum.dim_IntList", {"self": "x"}, [SCORES.sum(1)], dim=(1,), keepdim=False, dtype=None),
    ]
    graph = graph_of(nodes, {"x": SCORES})
    honest = {"x": SCORES, "n0": first, "n0.1": second, "n1": SCORES.T, "n2": SCORES, "n3": SCORES.sum(1)}
    assert judged("conservation", graph, honest) == (True, ())
    for ref in ("n0", "n0.1", "n1", "n2"):
        assert judged("conservation", graph, {**honest, ref: nudged(honest[ref], (0, 1), 1.0)}) == (False, ())
    assert judged("conservation", graph, {**honest, "n3": nudged(SCORES.sum(1), (0,), 1.0)}) == (False, ())


def test_partly_bound_data_is_judged_as_far_as_it_goes_and_the_rest_is_named() -> None:
    assert judged("ranges", SOFTMAX, {"x": SCORES})[1] == ("property ranges: no value that it applies to is bound",)


def test_a_property_that_does_not_exist_is_refused_and_every_one_says_what_it_proves() -> None:
    with pytest.raises(UsageError, match="no such property honesty: there are shapes, finite"):
        judged("honesty", SOFTMAX, {"x": SCORES})
    assert all(len(found.proves) > 20 and found.name == name for name, found in PROPERTIES.items())
