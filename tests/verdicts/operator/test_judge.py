"""One operator on its claimed operands: what is accepted, what is not, and what stays open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tallystick.core.digests import digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.graph import Node
from tallystick.programs.operators.precision import PLAIN, TENSOR_FLOAT
from tallystick.verdicts.opening.judge import judge_operator
from tallystick.verdicts.operator.judge import OperatorJudge
from tallystick.verdicts.verdict import Findings

GRAPH = digest("graph", b"")
RNG = np.random.default_rng(4)
A, B = RNG.normal(size=(5, 64)).astype(np.float32), RNG.normal(size=(64, 6)).astype(np.float32)


def judged(
    name: str, operands: dict[str, Any], attributes: dict[str, Any], result: np.ndarray[Any, Any], **how: Any
) -> tuple[bool, list[str], str]:
    """Whether nothing objects, which checks objected, and what could not be checked."""
    values = {f"v{i}": Tensor.of(np.asarray(array)) for i, array in enumerate(operands.values())}
    claimed = Tensor.of(np.asarray(result))
    refs = dict(zip(operands, values, strict=True))
    stated = how.pop("stated", TensorSpec.of(claimed))
    node = Node(7, name, refs, attributes, (stated,))
    notes = Findings()
    engine = how.pop("engine", None)
    line = judge_operator(notes, OperatorJudge(GRAPH, **how), node, {**values, "n7": claimed}, engine)
    return not notes.rejected, [finding.name for finding in notes.seen if not finding.agrees], line


def test_a_product_is_judged_by_its_bound() -> None:
    honest = A @ B
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, honest) == (True, [], "")
    off = honest.copy()
    off[2, 3] += 1e-2
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, off) == (False, ["operator"], "")


def test_a_coarser_precision_has_to_be_stated() -> None:
    rounded = (A.view(np.int32) & -(1 << 13)).view(np.float32)
    coarse = rounded @ B
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, coarse)[0] is False
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, coarse, precision=TENSOR_FLOAT)[0] is True


def test_what_is_moved_is_exact_down_to_the_sign_of_a_zero() -> None:
    x = np.array([[0.0, -0.0, 3.0]], np.float32)
    assert judged("aten.t.default", {"self": x}, {}, x.T.copy())[0] is True
    assert judged("aten.t.default", {"self": x}, {}, np.abs(x.T))[0] is False
    assert judged("aten.t.default", {"self": x}, {}, np.nextafter(x.T, np.float32(9)))[0] is False


def test_whole_numbers_are_compared_one_by_one() -> None:
    x = np.array([3, 2**60 + 1], np.int64)
    assert judged("aten.neg.default", {"self": x}, {}, -x)[0] is True
    assert judged("aten.neg.default", {"self": x}, {}, -x + np.array([0, 1]))[0] is False


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_an_infinity_or_nan_in_place_of_a_number_is_rejected(wrong: float) -> None:
    honest = (A @ B).astype(np.float32)
    honest[0, 0] = wrong
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, honest)[0] is False


def test_values_of_other_types_than_the_node_has_are_rejected() -> None:
    honest = A @ B
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, honest.astype(np.float64))[1] == ["operator types"]
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, honest[:4])[1] == ["operator types"]
    stated = TensorSpec("F32", (9, 9))
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, honest, stated=stated)[1] == ["operator types"]
    assert judged("aten.mm.default", {"self": A, "mat2": B.T.copy()}, {}, honest)[1] == ["operator types"]


def test_a_value_that_is_not_there_leaves_the_operator_open() -> None:
    node = Node(7, "aten.mm.default", {"self": "a", "mat2": "b"}, {}, (TensorSpec("F32", (5, 6)),))
    notes = Findings()
    assert judge_operator(notes, OperatorJudge(GRAPH), node, {"a": Tensor.of(A)}) == "node 7: b is not opened"
    assert notes.seen == []


ANGLES = np.linspace(-3, 3, 60, dtype=np.float32)


def test_an_engine_that_is_known_to_leave_the_bound_is_neither_accused_nor_accepted() -> None:
    off = np.cos(ANGLES) + np.float32(1e-4)
    assert judged("aten.cos.default", {"self": ANGLES}, {}, off) == (False, ["operator"], "")
    assert judged("aten.cos.default", {"self": ANGLES}, {}, off, engine="torch")[0] is False
    agrees, _, line = judged("aten.cos.default", {"self": ANGLES}, {}, off, engine="iree")
    assert agrees
    assert "of its bound, and iree is known to leave it" in line


def test_what_it_computes_within_its_bound_and_its_other_operators_are_judged_as_ever() -> None:
    assert judged("aten.cos.default", {"self": ANGLES}, {}, np.cos(ANGLES), engine="iree") == (True, [], "")
    off = np.exp(ANGLES) * np.float32(1.001)
    assert judged("aten.exp.default", {"self": ANGLES}, {}, off, engine="iree") == (False, ["operator"], "")


def test_a_kernel_that_rounds_every_step_to_16_bits_is_honest_unless_it_is_said_to_widen() -> None:
    x = ANGLES.astype(np.float16)
    gate = (1 / (1 + np.exp(-x.astype(np.float32)))).astype(np.float16)
    assert judged("aten.silu.default", {"self": x}, {}, x * gate) == (True, [], "")
    assert judged("aten.silu.default", {"self": x}, {}, x * gate, precision=PLAIN)[0] is False
    assert judged("aten.silu.default", {"self": x}, {}, x * gate * np.float16(1.01))[0] is False


def node_of(name: str, result: np.ndarray[Any, Any], **operands: str) -> Node:
    return Node(7, name, dict(operands), {}, (TensorSpec.of(Tensor.of(result)),))


def test_elements_are_compared_as_they_are_among_all() -> None:
    claimed = A @ B
    claimed[2, 3] += 1e-2
    values = {"a": Tensor.of(A), "b": Tensor.of(B), "n7": Tensor.of(claimed)}
    node = node_of("aten.mm.default", claimed, self="a", mat2="b")
    (whole,) = OperatorJudge(GRAPH).compare(node, values)
    (some,) = OperatorJudge(GRAPH).compare(node, values, {"n7": np.array([4, 15])})
    assert (whole.worst, whole.finding.where) == (some.worst, some.finding.where) == (15, "element [2,3]")
    assert some.wrong.tolist() == [False, True]
    np.testing.assert_allclose(some.shares, whole.shares[[4, 15]], rtol=1e-6)


def test_a_zero_of_the_other_sign_is_named_by_its_element() -> None:
    x = np.array([[0.0, -0.0, 3.0]], np.float32)
    values = {"a": Tensor.of(x), "n7": Tensor.of(np.abs(x.T))}
    (found,) = OperatorJudge(GRAPH).compare(node_of("aten.t.default", x.T, self="a"), values)
    assert (found.finding.where, found.finding.detail) == ("element [1,0]", "1 zeros of the other sign")
    assert (found.finding.agrees, found.worst) == (False, 1)
    (same,) = OperatorJudge(GRAPH).compare(
        node_of("aten.t.default", x.T, self="a"), values | {"n7": Tensor.of(x.T.copy())}
    )
    assert same.finding.agrees
    assert not same.wrong.any()


def test_a_definition_that_fails_leaves_the_operator_open(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = A @ B
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, honest) == (True, [], "")

    def failing(*_: Any, **__: Any) -> Any:
        raise IndexError("its author did not think of this")

    monkeypatch.setattr("tallystick.verdicts.operator.judge.bound", failing)
    line = "node 7: does not fit its operands (IndexError: its author did not think of this)"
    assert judged("aten.mm.default", {"self": A, "mat2": B}, {}, honest) == (True, [], line)
