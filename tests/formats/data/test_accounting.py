from __future__ import annotations

import numpy as np
import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import ProofError
from tallystick.formats.data.samples import BatchPlan, check_batches, count_targets

PLAN = BatchPlan(digest("dataset", b"a test"), seed=0, count=10, validation_count=2, batch=4)


def batches(steps: int) -> list[np.ndarray]:
    return [PLAN.indices(step) for step in range(1, steps + 1)]


def test_one_epoch_trains_on_every_training_sample_once() -> None:
    account = check_batches(batches(2), PLAN)
    assert account.histogram() == {0: 2, 1: 8}
    assert account.never_seen.tolist() == PLAN.validation.tolist()
    assert (account.most, account.total) == (1, 8)


def test_samples_of_an_unfinished_epoch_are_counted_as_they_are() -> None:
    account = check_batches(batches(3), PLAN)
    assert account.histogram() == {0: 2, 1: 4, 2: 4}
    assert account.to_json() == {
        "most": 2,
        "never_seen": 2,
        "samples_by_times": {"0": 2, "1": 4, "2": 4},
        "total": 12,
    }


def test_every_token_of_a_window_is_a_target_as_often_as_its_window() -> None:
    account = count_targets([np.array([0, 0, 2])], PLAN)
    times = account.token_times(tokens=33, sequence=3)
    assert times.tolist() == [0, 2, 2, 2, 0, 0, 0, 1, 1, 1] + [0] * 23


def test_nothing_recorded_means_nothing_seen() -> None:
    assert check_batches([], PLAN).never_seen.size == PLAN.count


def test_the_first_step_that_departs_from_the_plan_is_named() -> None:
    recorded = batches(3)
    recorded[1] = recorded[1][::-1]
    with pytest.raises(ProofError, match="step 2"):
        check_batches(recorded, PLAN)
    assert count_targets(recorded, PLAN).total == 12


@pytest.mark.parametrize("sample", [-1, 10])
def test_a_sample_that_does_not_exist_is_refused(sample: int) -> None:
    with pytest.raises(ProofError, match=f"step 1: sample {sample}"):
        count_targets([np.array([0, sample])], PLAN)
