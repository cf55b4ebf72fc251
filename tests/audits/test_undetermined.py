"""Elements whose gradient is rounding only are known by the verifier's own replay, and by nothing the prover says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.audits.tolerant import NOISE, find_undetermined, judge_share, settle, share_of_update
from tallystick.core.tensors import Tensor

State = dict[str, Tensor]


def state(moment: list[float], weights: list[float]) -> State:
    """Four weights whose last one may have no gradient, beside 96 that have one."""
    return {
        "weights.a": Tensor.of(np.asarray(weights, np.float32)),
        "optimizer.a.exp_avg": Tensor.of(np.asarray(weights, np.float32)),
        "optimizer.a.exp_avg_sq": Tensor.of(np.asarray(moment, np.float32)),
        "weights.b": Tensor.of(np.ones(96, np.float32)),
        "optimizer.b.exp_avg_sq": Tensor.of(np.ones(96, np.float32)),
    }


DEAD = state([1, 1, 1, 1e-14], [0.1, 0.2, 0.3, 0.5])


def test_an_element_with_a_gradient_of_rounding_is_found_and_no_other() -> None:
    masks = find_undetermined(DEAD, "fp32")
    assert masks.keys() == {"a"}
    assert masks["a"].tolist() == [False, False, False, True]


@pytest.mark.parametrize("moment", [0.0, 1e-8])
def test_no_gradient_at_all_and_a_small_one_determine_their_weight(moment: float) -> None:
    assert find_undetermined(state([1, 1, 1, moment], [0.0] * 4), "fp32") == {}


def test_bf16_knows_larger_roundings() -> None:
    assert find_undetermined(state([1, 1, 1, 1e-6], [0.0] * 4), "bf16").keys() == {"a"}
    assert find_undetermined(state([1, 1, 1, 1e-6], [0.0] * 4), "fp32") == {}


def test_sgd_leaves_nothing_undetermined() -> None:
    assert find_undetermined({"weights.a": DEAD["weights.a"]}, "fp32") == {}


def test_only_the_undetermined_element_is_taken_from_the_replay() -> None:
    claimed = DEAD | {"weights.a": Tensor.of(np.asarray([0.1, 0.9, 0.3, 7.0], np.float32))}
    settled = settle(claimed, DEAD, find_undetermined(DEAD, "fp32"))
    assert settled["weights.a"].array().tolist() == np.asarray([0.1, 0.9, 0.3, 0.5], np.float32).tolist()


def test_a_claim_of_another_shape_is_left_as_it_is() -> None:
    claimed = DEAD | {"weights.a": Tensor.of(np.zeros(3, np.float32))}
    assert settle(claimed, DEAD, find_undetermined(DEAD, "fp32"))["weights.a"] is claimed["weights.a"]


def test_few_undetermined_elements_agree_and_many_do_not() -> None:
    masks = find_undetermined(DEAD, "fp32")
    assert judge_share(DEAD, masks, "fp32").agrees
    many = {"b": np.ones(96, bool)}
    assert not judge_share(DEAD, many, "fp32").agrees


def test_the_room_of_a_sketch_is_the_update_that_is_undetermined() -> None:
    start = DEAD | {"weights.a": Tensor.of(np.zeros(4, np.float32))}
    room = share_of_update(start, DEAD, find_undetermined(DEAD, "fp32"))
    assert room == pytest.approx(4 * 0.5 / np.sqrt(0.01 + 0.04 + 0.09 + 0.25), rel=1e-6)
    assert share_of_update(start, DEAD, {}) == 0.0


def test_an_audit_that_could_compare_hardly_anything_is_inconclusive(
    honest: Path, audited: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audited(honest, mode="tolerant", full=True).verdict.outcome == "accepted"
    monkeypatch.setitem(NOISE, "fp32", 1e3)
    verdict = audited(honest, mode="tolerant", full=True).verdict
    assert verdict.outcome == "inconclusive"
    assert "gradient of rounding only" in verdict.unavailable[0]
