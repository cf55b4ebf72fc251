from __future__ import annotations

import numpy as np
import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import ProofError
from tallystick.formats.data.samples import BatchPlan, count_targets, target_account

PLAN = BatchPlan(digest("dataset", b"a test"), seed=0, count=10, validation_count=2, batch=4)


def batches(steps: int) -> list[np.ndarray]:
    return [PLAN.indices(step) for step in range(1, steps + 1)]


def test_one_epoch_trains_on_every_training_sample_once() -> None:
    times = count_targets(batches(2), PLAN)
    assert target_account(times)["samples_by_times"] == {"0": 2, "1": 8}
    assert np.flatnonzero(times == 0).tolist() == PLAN.validation.tolist()


def test_samples_of_an_unfinished_epoch_are_counted_as_they_are() -> None:
    assert target_account(count_targets(batches(3), PLAN)) == {
        "most": 2,
        "never_seen": 2,
        "samples_by_times": {"0": 2, "1": 4, "2": 4},
        "total": 12,
    }


def test_nothing_recorded_means_nothing_seen() -> None:
    assert target_account(count_targets([], PLAN))["never_seen"] == PLAN.count


@pytest.mark.parametrize("sample", [-1, 10])
def test_a_sample_that_does_not_exist_is_refused(sample: int) -> None:
    with pytest.raises(ProofError, match=f"step 1: sample {sample}"):
        count_targets([np.array([0, sample])], PLAN)
