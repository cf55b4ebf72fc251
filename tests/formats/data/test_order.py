from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError
from tallystick.formats.data.samples import BatchPlan

VECTORS = Path(__file__).parents[3] / "vectors" / "order"
ROOT = digest("dataset", b"a test")
PLAN = BatchPlan(ROOT, seed=7, count=100, validation_count=10, batch=8)

plans = st.builds(
    lambda count, share, batch, seed: BatchPlan(ROOT, seed, count, int(share * (count - 1)), batch),
    st.integers(1, 60),
    st.floats(0, 1),
    st.integers(1, 70),
    st.integers(0, 2**53 - 1),
)


@given(plans)
@settings(deadline=None, max_examples=50)
def test_training_and_validation_share_no_sample_and_miss_none(plan: BatchPlan) -> None:
    together = np.concatenate([plan.validation, plan.train])
    assert sorted(together.tolist()) == list(range(plan.count))
    assert plan.validation.size == plan.validation_count


@given(plans)
@settings(deadline=None, max_examples=50)
def test_every_epoch_has_every_training_sample_once(plan: BatchPlan) -> None:
    steps = -(-3 * plan.train_count // plan.batch)
    stream = np.concatenate([plan.indices(step) for step in range(1, steps + 1)])
    for epoch in range(3):
        seen = stream[epoch * plan.train_count : (epoch + 1) * plan.train_count]
        assert sorted(seen.tolist()) == plan.train.tolist()


@given(plans, st.integers(1, 10**6))
@settings(deadline=None, max_examples=30)
def test_a_batch_follows_from_its_step_alone(plan: BatchPlan, step: int) -> None:
    batch = plan.indices(step)
    assert (batch.dtype, batch.shape) == (np.dtype(np.int64), (plan.batch,))
    assert np.array_equal(batch, replace(plan).indices(step))


def test_epochs_are_shuffled_differently() -> None:
    plan = replace(PLAN, batch=90)
    batches = [plan.indices(step) for step in range(1, 4)]
    assert [plan.epoch(step) for step in range(1, 4)] == [0, 1, 2]
    assert all(not np.array_equal(first, second) for first, second in pairwise(batches))


def test_data_root_and_seed_key_the_order() -> None:
    others = (replace(PLAN, seed=8), replace(PLAN, data_root=digest("dataset", b"another")))
    for other in others:
        assert not np.array_equal(PLAN.validation, other.validation)
        assert not np.array_equal(PLAN.indices(1), other.indices(1))


@pytest.mark.parametrize(
    "change", [{"validation_count": 100}, {"validation_count": -1}, {"count": 0}, {"batch": 0}, {"seed": -1}]
)
def test_a_plan_that_trains_on_nothing_is_refused(change: dict[str, int]) -> None:
    assert replace(PLAN, validation_count=99).train.size == 1
    with pytest.raises(MalformedError):
        replace(PLAN, **change)


def test_published_vectors_hold() -> None:
    for vector in json.loads((VECTORS / "order.json").read_bytes())["plans"]:
        plan = BatchPlan(**vector["plan"])
        assert plan.key("split").hex() == vector["split_key"]
        assert plan.key("epoch", 1).hex() == vector["epoch_1_key"]
        assert plan.validation.tolist() == vector["validation"]
        for step, batch in vector["batches"].items():
            assert plan.indices(int(step)).tolist() == batch
