"""Target accounting: how often every sample, and so every token of it, was a target of training.

Windows do not overlap in their targets: token p (p ≥ 1) is a target of window (p - 1) // sequence and of no
other, so that counting windows counts tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallystick.commitments.encoding import Json
from tallystick.datasets.order import BatchPlan, Indices
from tallystick.errors import ProofError


@dataclass(frozen=True, eq=False)
class TargetAccount:
    """How often each sample of the data was trained on, int64[count]."""

    times: NDArray[np.int64]

    @property
    def most(self) -> int:
        """The largest number of times that one sample was trained on."""
        return int(self.times.max(initial=0))

    @property
    def total(self) -> int:
        """The number of samples trained on, each as often as it was."""
        return int(self.times.sum())

    @property
    def never_seen(self) -> Indices:
        """The samples that were never trained on, validation included."""
        return np.flatnonzero(self.times == 0)

    def histogram(self) -> dict[int, int]:
        """How many samples were trained on exactly so many times."""
        times, samples = np.unique(self.times, return_counts=True)
        return dict(zip(times.tolist(), samples.tolist(), strict=True))

    def token_times(self, tokens: int, sequence: int) -> NDArray[np.int64]:
        """How often each of `tokens` tokens was a target, int64[tokens]; the first token never is."""
        times = np.zeros(tokens, np.int64)
        targets = np.repeat(self.times, sequence)
        times[1 : 1 + targets.size] = targets
        return times

    def to_json(self) -> Json:
        """The account in numbers, for reports."""
        spread: dict[str, Json] = {str(times): samples for times, samples in self.histogram().items()}
        return {
            "most": self.most,
            "never_seen": self.never_seen.size,
            "samples_by_times": spread,
            "total": self.total,
        }


def count_targets(batches: Iterable[Indices], plan: BatchPlan) -> TargetAccount:
    """Count the samples of recorded batches; the records of steps 1, 2, … need not follow the plan.

    Raises:
        ProofError: when a batch names a sample that does not exist.
    """
    times = np.zeros(plan.count, np.int64)
    for step, batch in enumerate(batches, 1):
        _check_range(batch, plan.count, step)
        np.add.at(times, batch, 1)
    return TargetAccount(times)


def check_batches(batches: Iterable[Indices], plan: BatchPlan) -> TargetAccount:
    """Count the samples of recorded batches, which must be those of the plan.

    Raises:
        ProofError: naming the first step whose batch is not the one that (step, data root, seed) gives.
    """
    return count_targets((_check_batch(batch, plan, step) for step, batch in enumerate(batches, 1)), plan)


def _check_batch(batch: Indices, plan: BatchPlan, step: int) -> Indices:
    planned = plan.indices(step)
    if not np.array_equal(batch, planned):
        raise ProofError(f"step {step}: its batch is not the one that step, data root and seed give")
    return planned


def _check_range(batch: Indices, count: int, step: int) -> None:
    outside = batch[(batch < 0) | (batch >= count)]
    if outside.size:
        raise ProofError(f"step {step}: sample {outside[0]} does not exist among {count}")
